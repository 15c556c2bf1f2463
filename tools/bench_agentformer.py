"""AgentFormer in the sizes of its paper on a CPU: seconds a scene in training (first stage), for 20 samples of a frame; memory.

    python tools/bench_agentformer.py [--data ETH_UCY] [--threads N] [--repeats N] [--agents 9 ...] [--json FILE]

Scenes of training are invented walkers, all of them with 8 observed and 12 future steps, as many in a step as `SCENES` says. With
--data the samples are of the test frames of eth, decoding the pedestrians that the published code decodes (those with a
future) and, as a forecast must, everybody who is there; without it of invented frames. Medians after a warm-up, of wall time and
of CPU time, which tells more on a busy machine. PUBLISHED are figures of the released code, wall time, two free cores, another
run; it takes one scene a step. Memory is what a process of its own needs at its peak beyond what it holds after a step with two
pedestrians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from bench_model import environment
from peak_memory import forget_peak, peak_mb

from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig
from trajformer.models import AgentFormer, AgentFormerConfig
from trajformer.models.agentformer.loss import CVAELossConfig, cvae_loss
from trajformer.models.agentformer.parts import FutureDecoder
from trajformer.scenes.scene import AgentKind, AgentRole, Scene
from trajformer.training.memory import keep_freed_memory

CPU = torch.device("cpu")
SCENES = {1: 32, 4: 16, 9: 8, 32: 2}  # agents: scenes a step
PUBLISHED_TRAINING_S = {1: 0.18, 4: 0.55, 9: 1.5, 32: 7.6}  # 32 agents: 7.6 to 16
PUBLISHED_SAMPLING_S = 0.101
ETH = AgentFormerConfig(scale_m=2.0)
DROPOUT = replace(ETH, block=replace(ETH.block, attention_dropout=0.1))  # the paper's
RUNS = (("fp32", DROPOUT), ("fp32", ETH), ("bf16", DROPOUT))
CROWDS = (8, 16, 32, 64, 128)  # agents whose memory is measured
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
    from data_prep.readers.vector_map import build_map

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


def autocast(precision: str) -> torch.autocast:
    """As Lightning has it for bf16-mixed, or nothing."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


def stepper(config: AgentFormerConfig, precision: str = "fp32") -> Callable[[SceneBatch], None]:
    """A step of the first stage: loss, gradient, AdamW."""
    torch.manual_seed(0)
    model = AgentFormer(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step(batch: SceneBatch) -> None:
        optimizer.zero_grad()
        with autocast(precision):
            output = model.reconstruct(batch)
            loss = cvae_loss(output, batch.target, batch.target_valid, config.scale_m, CVAELossConfig())["loss"]
        loss.backward()
        optimizer.step()

    return step


def sampler(precision: str = "fp32") -> Callable[[SceneBatch], None]:
    """Draws 20 samples of every target of a batch."""
    torch.manual_seed(0)
    model = AgentFormer(ETH).eval()

    def sample(batch: SceneBatch) -> None:
        with torch.inference_mode(), autocast(precision):
            model(batch)

    return sample


def training(agents: int, config: AgentFormerConfig, precision: str, repeats: int) -> dict[str, Any]:
    """Seconds a scene."""
    batch = collate([walkers(agents, seed) for seed in range(SCENES[agents])])
    wall, cpu = (value / batch.num_scenes for value in medians(partial(stepper(config, precision), batch), repeats))
    published = PUBLISHED_TRAINING_S[agents]
    row = {"agents": agents, "scenes": batch.num_scenes, "attention_dropout": config.block.attention_dropout}
    return row | {"precision": precision, "wall_s": wall, "cpu_s": cpu, "published_s": published, "times": published / wall}


def memory(what: str, agents: int) -> dict[str, Any]:
    """Peak in MB of one training step or of 20 samples, measured in a new process."""
    command = [sys.executable, __file__, "--only", f"{what} {agents}", "--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    peak_mb, kept = map(float, done.stdout.split()[-2:])
    return {"memory_of": what, "agents": agents, "peak_mb": peak_mb, "decoded_futures": int(kept), "mb_a_future": peak_mb / kept}


def peak(only: str) -> None:
    """Print how much more memory than before one scene takes, and how many futures are decoded, in training with a gradient."""
    what, agents = only.split()
    batch, futures = collate([walkers(int(agents), 0)]), [20 * int(agents)]
    replay = FutureDecoder.replay
    FutureDecoder.replay = lambda self, z, *rest: (futures.append(z.shape[1] * z.shape[2]), replay(self, z, *rest))[1]  # type: ignore
    run = sampler() if what == "sampling" else stepper(DROPOUT if what == "training" else ETH)
    run(collate([walkers(2, 0)]))  # what the first step alone needs: code, the optimiser's moments
    before = forget_peak(CPU)
    run(batch)
    print(peak_mb(CPU) - before, futures[-1])


def frames(data: Path | None) -> list[Scene]:
    """The test frames of eth, or invented ones."""
    if data is None:
        return [walkers(1 + seed % 2, seed) for seed in range(20)]
    from data_prep.readers.eth_ucy import EthUcy

    reader = EthUcy()
    return [reader.read(item, "eth_test", data) for item in reader.inputs(data, "eth_test")]


def sampling(scenes: list[Scene], config: BatchConfig, who: str, precision: str, repeats: int) -> dict[str, Any]:
    """20 samples of each frame by itself, and of all in batches of frames of like size."""
    sample, step = sampler(precision), max(len(scenes) // repeats, 1)
    samples = [collate([scene], config) for scene in scenes]
    alone = [medians(lambda b=b: sample(b), 1) for b in samples[::step]]  # type: ignore[misc]
    order = sorted(range(len(scenes)), key=lambda index: samples[index].agent_mask.shape[1])
    batches = [collate([scenes[i] for i in order[first : first + 32]], config) for first in range(0, len(scenes), 32)]
    wall, cpu = (value / len(scenes) for value in medians(lambda: [sample(batch) for batch in batches], 1))
    single = [statistics.median(times) for times in zip(*alone, strict=True)]
    row = {"decoded": who, "frames": len(scenes), "precision": precision, "published_s": PUBLISHED_SAMPLING_S}
    row |= {"wall_s": single[0], "cpu_s": single[1], "times": PUBLISHED_SAMPLING_S / single[0]}
    return row | {"batched_wall_s": wall, "batched_cpu_s": cpu, "batched_times": PUBLISHED_SAMPLING_S / wall}


def table(title: str, columns: str, rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print rows as they come; `columns` are names of a row's values."""
    print(title + "\n" + "".join(f"{name:>18}" for name in columns.split()), flush=True)
    kept = []
    for row in rows:
        values = (row[name] for name in columns.split())
        print("".join(f"{value:>18.4f}" if isinstance(value, float) else f"{value:>18}" for value in values), flush=True)
        kept.append(row)
    return kept


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with eth, hotel, ...")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--agents", type=int, nargs="+", default=list(SCENES), choices=list(SCENES), help="sizes of training scenes"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    keep_freed_memory()  # as `trajformer train` does
    if args.only:
        peak(args.only)
        return
    machine = environment("cpu") | {"load": os.getloadavg()}
    print(json.dumps(machine))
    steps = (training(agents, config, precision, args.repeats) for precision, config in RUNS for agents in args.agents)
    rows = table("training, seconds a scene", "agents scenes precision attention_dropout wall_s cpu_s published_s times", steps)
    scenes, kinds = frames(args.data), (("a future", ONE_BY_ONE), ("everybody", BatchConfig()))
    drawn = (sampling(scenes, batch, who, precision, 4 * args.repeats) for precision in ("fp32", "bf16") for who, batch in kinds)
    columns = "decoded frames precision wall_s cpu_s published_s times batched_wall_s batched_cpu_s batched_times"
    rows += table("20 samples, seconds a frame, by itself and in batches of 32", columns, drawn)
    needed = (memory(what, agents) for what in ("sampling", "training", "training-without") for agents in CROWDS)
    columns = "memory_of agents peak_mb decoded_futures mb_a_future"
    rows += table("memory of a scene (without: without attention dropout)", columns, needed)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
