"""AgentFormer in the sizes of its paper on a CPU: seconds a scene in training (first stage) and for 20 samples of a frame.

    python tools/bench_agentformer.py [--data ETH_UCY] [--threads N] [--repeats N] [--json FILE]

Scenes of training are invented walkers, all of them with 8 observed and 12 future steps, as many in a step as `SCENES` says. With
--data the samples are of the test frames of eth, decoding the pedestrians that the published code decodes (those with a
future) and, as a forecast must, everybody who is there; without it of invented frames. Medians after a warm-up, of wall time and
of CPU time, which tells more on a busy machine. PUBLISHED are figures of the released code, two cores, another run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from bench_model import environment

from trajformer.batch import SceneBatch, collate
from trajformer.losses.cvae import CVAELossConfig, cvae_loss
from trajformer.models import AgentFormer, AgentFormerConfig
from trajformer.sample import BatchConfig
from trajformer.scene import AgentKind, AgentRole, Scene
from trajformer.training.memory import keep_freed_memory

SCENES = {1: 32, 4: 16, 9: 8, 32: 2}  # agents: scenes a step
PUBLISHED_TRAINING_S = {1: 0.18, 4: 0.55, 9: 1.5, 32: 7.6}  # 32 agents: 7.6 to 16
PUBLISHED_SAMPLING_S = 0.101
ETH = AgentFormerConfig(scale_m=2.0)
DROPOUT = replace(ETH, block=replace(ETH.block, attention_dropout=0.1))
ONE_BY_ONE = BatchConfig(max_agents=1)  # targets alone: who has no future is left out, as in the published code


def walkers(count: int, seed: int) -> Scene:
    """Pedestrians who go their ways for 20 steps."""
    rng = np.random.default_rng(seed)
    speed = rng.normal(0, 0.5, (count, 1, 2)) + rng.normal(0, 0.05, (count, 20, 2)).cumsum(1)
    position = (rng.uniform(-5, 5, (count, 1, 2)) + speed.cumsum(1)).astype(np.float32)
    return Scene(
        scene_id=f"{count}-{seed}", source="bench", split="train", city="bench", period_s=0.4, num_history=8, num_future=12,
        origin=np.zeros(2), agent_id=tuple(map(str, range(count))), agent_kind=np.full(count, AgentKind.PEDESTRIAN, np.uint8),
        agent_role=np.full(count, AgentRole.SCORED, np.uint8), position=position, heading=np.zeros((count, 20), np.float32),
        velocity=np.zeros_like(position), valid=np.ones((count, 20), bool), **_no_map(),
    )  # fmt: skip


def _no_map() -> dict[str, Any]:
    from data_prep.vector_map import build_map

    return build_map([], [], np.zeros((0, 2)), []).scene_fields(np.zeros(2))


def medians(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Wall and CPU seconds of a call, after one that does not count."""
    run()
    wall, cpu = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    return statistics.median(wall), statistics.median(cpu)


def training(agents: int, config: AgentFormerConfig, repeats: int) -> dict[str, Any]:
    """A step of the first stage: loss, gradient, AdamW."""
    torch.manual_seed(0)
    model = AgentFormer(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    batch = collate([walkers(agents, seed) for seed in range(SCENES[agents])])

    def step() -> None:
        optimizer.zero_grad()
        output = model.reconstruct(batch)
        cvae_loss(output, batch.target, batch.target_valid, config.scale_m, CVAELossConfig())["loss"].backward()
        optimizer.step()

    wall, cpu = (value / batch.num_scenes for value in medians(step, repeats))
    published = PUBLISHED_TRAINING_S[agents]
    row = {"agents": agents, "scenes": batch.num_scenes, "attention_dropout": config.block.attention_dropout}
    return row | {"wall_s": wall, "cpu_s": cpu, "published_s": published, "times": published / wall}


def frames(data: Path | None) -> list[Scene]:
    """The test frames of eth, or invented ones."""
    if data is None:
        return [walkers(1 + seed % 2, seed) for seed in range(20)]
    from data_prep.eth_ucy import EthUcy

    reader = EthUcy()
    return [reader.read(item, "eth_test", data) for item in reader.inputs(data, "eth_test")]


def sampling(scenes: list[Scene], config: BatchConfig, who: str, repeats: int) -> dict[str, Any]:
    """20 samples of each frame by itself, and of all in batches."""
    torch.manual_seed(0)
    model, step = AgentFormer(ETH).eval(), max(len(scenes) // repeats, 1)

    def sample(batch: SceneBatch) -> None:
        with torch.inference_mode():
            model(batch)

    alone = [medians(lambda b=collate([scene], config): sample(b), 1) for scene in scenes[::step]]  # type: ignore[misc]
    order = sorted(range(len(scenes)), key=lambda index: len(scenes[index].agent_id))
    batches = [collate([scenes[i] for i in order[first : first + 32]], config) for first in range(0, len(scenes), 32)]
    wall, cpu = (value / len(scenes) for value in medians(lambda: [sample(batch) for batch in batches], 1))
    single = [statistics.median(times) for times in zip(*alone, strict=True)]
    row = {"decoded": who, "frames": len(scenes), "wall_s": single[0], "cpu_s": single[1], "published_s": PUBLISHED_SAMPLING_S}
    return row | {"times": PUBLISHED_SAMPLING_S / single[0], "batched_wall_s": wall, "batched_cpu_s": cpu}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with eth, hotel, ...")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    keep_freed_memory()  # as `trajformer train` does
    machine = environment("cpu") | {"load": os.getloadavg()}
    print(json.dumps(machine))
    print("training, seconds a scene\nagents  scenes  attention dropout     wall      cpu  published   times")
    rows = []
    for config in (ETH, DROPOUT):
        for agents in SCENES:
            row = training(agents, config, args.repeats)
            rows.append(row)
            print(
                f"{agents:>6}  {row['scenes']:>6}  {row['attention_dropout']:>17} {row['wall_s']:>8.4f} {row['cpu_s']:>8.4f}"
                f"  {row['published_s']:>9.2f}  {row['times']:>6.1f}",
                flush=True,
            )
    print("20 samples, seconds a frame\n  decoded  frames     wall      cpu  published   times  in batches of 32: wall, cpu")
    scenes = frames(args.data)
    for who, batch in (("a future", ONE_BY_ONE), ("everybody", BatchConfig())):
        row = sampling(scenes, batch, who, 4 * args.repeats)
        rows.append(row)
        print(
            f"{who:>9}  {row['frames']:>6} {row['wall_s']:>8.4f} {row['cpu_s']:>8.4f}  {row['published_s']:>9.3f}  "
            f"{row['times']:>6.1f}  {row['batched_wall_s']:.4f} {row['batched_cpu_s']:.4f}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
