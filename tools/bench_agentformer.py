"""Speed and memory of AgentFormer in the sizes of its paper on a CPU: training per scene (first stage), 20 samples per frame.

    python tools/bench_agentformer.py [--data ETH_UCY] [--threads N] [--repeats N] [--agents 9 ...] [--json FILE]

Training uses random pedestrians with 8 observed and 12 future steps, `SCENES` scenes per step. With --data, samples are drawn
for the test frames of eth, otherwise for random frames: "with future" decodes the pedestrians with a recorded future, as the
published code does; "all" decodes all observed pedestrians. Figures are medians of wall and CPU time; CPU time is more
stable on a busy machine. PUBLISHED are wall times of the released code on two idle cores; it takes one scene per step. Memory
is the peak of a separate process, relative to its memory after a step with two pedestrians.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import in_new_process, new_parser, parse, peak_mb, report, reset_peak, times_s

from data_prep.readers.columns import Agents
from data_prep.readers.eth_ucy import EthUcy
from data_prep.readers.vector_map import NO_MAP
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig
from trajformer.models.agentformer.model import AgentFormerConfig, CVAELossConfig
from trajformer.models.agentformer.networks import FutureDecoder
from trajformer.scenes.scene import AgentKind, AgentRole, Scene
from trajformer.training.memory import keep_freed_memory

SCENES = {1: 32, 4: 16, 9: 8, 32: 2}  # scenes per step by number of agents
PUBLISHED_TRAINING_S = {1: 0.18, 4: 0.55, 9: 1.5, 32: 7.6}  # 32 agents: 7.6 to 16
PUBLISHED_SAMPLING_S = 0.101
ETH = AgentFormerConfig(scale_m=2.0)
DROPOUT = replace(ETH, block=replace(ETH.block, attention_dropout=0.1))  # as in the paper
RUNS = (("fp32", DROPOUT), ("fp32", ETH), ("bf16", DROPOUT))
CROWDS = (8, 16, 32, 64, 128)  # numbers of agents for memory
TARGETS_ONLY = BatchConfig(max_agents=1)  # without agents that have no future


def pedestrians(count: int, seed: int) -> Scene:
    """Random pedestrians, valid at 20 steps."""
    rng = np.random.default_rng(seed)
    speed = rng.normal(0, 0.5, (count, 1, 2)) + rng.normal(0, 0.05, (count, 20, 2)).cumsum(1)
    position = (rng.uniform(-5, 5, (count, 1, 2)) + speed.cumsum(1)).astype(np.float32)
    kind, role = (np.full(count, value, np.uint8) for value in (AgentKind.PEDESTRIAN, AgentRole.SCORED))
    still, valid = np.zeros((count, 20)), np.ones((count, 20), bool)
    agents = Agents([*map(str, range(count))], kind, role, position, still, np.zeros_like(position), valid)
    return agents.scene((f"{count}-{seed}", "bench", "train", "bench"), (0.4, 8, 12), np.zeros(2), NO_MAP)


def build_training(config: AgentFormerConfig, precision: str = "fp32") -> Callable[[SceneBatch], None]:
    """A step of the first stage: loss, gradient, AdamW."""
    torch.manual_seed(0)
    model, loss = config.build().train(), CVAELossConfig().build()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step(batch: SceneBatch) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):  # bf16-mixed as in Lightning
            value = loss(model, batch)["loss"]
        value.backward()
        optimizer.step()

    return step


def build_sampling(precision: str = "fp32") -> Callable[[SceneBatch], None]:
    """Draws 20 samples per target of a batch."""
    torch.manual_seed(0)
    model = ETH.build().eval()

    def sample(batch: SceneBatch) -> None:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            model(batch.observation)

    return sample


def training(agents: int, config: AgentFormerConfig, precision: str, repeats: int) -> dict[str, Any]:
    """Seconds per scene."""
    batch, step = collate([pedestrians(agents, seed) for seed in range(SCENES[agents])]), build_training(config, precision)
    wall, cpu = np.median(times_s({"": lambda: step(batch)}, repeats)[""], 0) / batch.num_scenes
    published = PUBLISHED_TRAINING_S[agents]
    row = {"agents": agents, "scenes": batch.num_scenes, "attention_dropout": config.block.attention_dropout}
    return row | {"precision": precision, "wall_s": wall, "cpu_s": cpu, "published_s": published, "speedup": published / wall}


def sampling(scenes: list[Scene], config: BatchConfig, decoded: str, precision: str, repeats: int) -> dict[str, Any]:
    """20 samples of single frames, then all frames in batches of frames of similar size."""
    sample, every = build_sampling(precision), max(len(scenes) // repeats, 1)
    single = [collate([scene], config) for scene in scenes]
    times = [times_s({"": lambda batch=batch: sample(batch)}, 1)[""][0] for batch in single[::every]]  # type: ignore[misc]
    order = sorted(range(len(scenes)), key=lambda index: single[index].observation.agent_mask.shape[1])
    batches = [collate([scenes[i] for i in order[first : first + 32]], config) for first in range(0, len(scenes), 32)]
    batched = times_s({"": lambda: [sample(batch) for batch in batches]}, 1)[""][0] / len(scenes)
    row = {"decoded": decoded, "frames": len(scenes), "precision": precision, "published_s": PUBLISHED_SAMPLING_S}
    for name, (wall, cpu) in {"": np.median(times, 0), "batched_": batched}.items():
        row |= {f"{name}wall_s": wall, f"{name}cpu_s": cpu, f"{name}speedup": PUBLISHED_SAMPLING_S / wall}
    return row


def memory(task: str, agents: int) -> dict[str, Any]:
    """Peak in MB (one training step, or 20 samples) of a new process, and the decoded futures (in training, with a gradient)."""
    keep_freed_memory()
    batch, futures = collate([pedestrians(agents, 0)]), [20 * agents]
    replay = FutureDecoder.replay

    def counting_replay(self: FutureDecoder, z: torch.Tensor, *rest: Any) -> torch.Tensor:
        futures.append(z.shape[1] * z.shape[2])
        return replay(self, z, *rest)

    FutureDecoder.replay = counting_replay  # type: ignore[method-assign]
    run = build_sampling() if task == "sampling" else build_training(DROPOUT if task == "training" else ETH)
    run(collate([pedestrians(2, 0)]))  # memory of the first step: code, optimizer state
    before = reset_peak()
    run(batch)
    increase = peak_mb() - before
    row = {"memory_of": task, "agents": agents, "peak_mb": increase, "decoded_futures": futures[-1]}
    return row | {"mb_per_future": increase / futures[-1]}


def main() -> None:
    """Measure training, sampling and memory."""
    parser = new_parser(__doc__, repeats=5)
    parser.add_argument("--data", type=Path, help="the folder with eth, hotel, ...")
    parser.add_argument("--agents", type=int, nargs="+", default=list(SCENES), choices=list(SCENES), help="of a training scene")
    args = parse(parser)
    keep_freed_memory()  # as `trajformer train`
    scenes, batches = [pedestrians(1 + seed % 2, seed) for seed in range(20)], {"with future": TARGETS_ONLY, "all": BatchConfig()}
    if args.data:
        reader = EthUcy()
        scenes = [reader.read(item, "eth_test", args.data) for item in reader.inputs(args.data, "eth_test")]
    tables = {
        "Training, seconds per scene": (
            training(agents, config, precision, args.repeats) for precision, config in RUNS for agents in args.agents
        ),
        "20 samples, seconds per frame, single and in batches of 32": (
            sampling(scenes, config, name, p, 4 * args.repeats) for p in ("fp32", "bf16") for name, config in batches.items()
        ),
        "Memory of a scene (training-without: without attention dropout)": (
            in_new_process(memory, task, agents) for task in ("sampling", "training", "training-without") for agents in CROWDS
        ),
    }
    report(args, tables)


if __name__ == "__main__":
    main()
