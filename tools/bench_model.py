"""Latency at batch 1 and training throughput of every model on one fixed scene of real size, with memory and sizes.

    python tools/bench_model.py [--store STORE --scene ID --split train] [--device cpu] [--json FILE]

Without --store the scene is simulated (seed 0), so that anyone can run it. `all` rows forecast every agent that was
seen at the last observed step, `scored` rows the scored ones. Medians of repeated runs after a warm-up; the machine,
versions and the allocator environment are printed with them. Peak memory is of a process of its own for each row.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from peak_memory import peak_mb

from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig
from trajformer.losses.set_loss import SetLossConfig, set_loss
from trajformer.models import ConstantVelocityConfig, MMTransformerConfig, ModelConfig, build_model
from trajformer.scenes.scene import Scene

SMALL = BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0)


def models(num_future: int) -> dict[str, ModelConfig]:
    """Every model in the sizes that our recipes use, and the paper's."""
    small = MMTransformerConfig(
        num_future, block=SMALL, steps_per_token=5, motion_layers=(1, 1), map_layers=(1, 1), social_layers=(1, 2),
        max_polylines=48, max_neighbors=8,
    )  # fmt: skip
    return {
        "constant_velocity": ModelConfig(constant_velocity=ConstantVelocityConfig(modes=6)),
        "mmtransformer (recipe)": ModelConfig(mmtransformer=small),
        "mmtransformer (paper)": ModelConfig(mmtransformer=MMTransformerConfig(num_future, neighbour_map=True)),
    }


def load_scene(store: Path | None, split: str, scene_id: str | None) -> Scene:
    """The scene to measure on."""
    if store is not None:
        from trajformer.scenes.store import SceneStore

        scenes = SceneStore(store, split)
        return scenes[scenes.find([scene_id])[0] if scene_id else 0]
    import tempfile

    from data_prep.readers.argoverse2.reader import Argoverse2
    from data_prep.synthetic import synthesize

    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder)
        synthesize(raw, 3, 0, progress=False)
        reader = Argoverse2()
        return reader.read(reader.inputs(raw, "train")[0], "train", raw)


def median_ms(run: Any, repeats: int, device: torch.device) -> float:
    """Median milliseconds of a call, after two calls that do not count."""
    times = []
    for index in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if index >= 2:
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def measure(model: nn.Module, one: SceneBatch, many: SceneBatch, repeats: int) -> dict[str, float]:
    """Forward at batch 1, and forward + backward of a batch."""
    device = one.position.device
    model = model.to(device).eval()

    def forward() -> None:
        with torch.inference_mode():
            model(one)

    row = {"targets": int(one.target_mask.sum()), "latency_ms": median_ms(forward, repeats, device)}
    row["parameters"] = sum(p.numel() for p in model.parameters())
    if row["parameters"]:
        model.train()

        def train_step() -> None:
            model.zero_grad()
            set_loss(model(many), many.target, many.target_valid, SetLossConfig())["loss"].backward()

        step = median_ms(train_step, max(repeats // 4, 3), device)
        row |= {"train_step_ms": step, "train_scenes_per_s": many.num_scenes / step * 1e3}
    return row | {"peak_memory_mb": peak_mb(device)}


def child(args: argparse.Namespace) -> None:
    """Measure one row in this process and print it as JSON."""
    scene = load_scene(args.store, args.split, args.scene)
    batch = BatchConfig(targets=args.targets, max_agents=256, polyline_points=6)
    device = torch.device(args.device)
    one = collate([scene], batch).to(device)
    many = collate([scene] * args.batch, batch).to(device)
    torch.manual_seed(0)
    row = measure(build_model(models(scene.num_future)[args.only]), one, many, args.repeats)
    shape = {"agents": int(one.agent_mask.sum()), "polylines": int(one.polyline_mask.sum()), "scene": scene.scene_id}
    print(json.dumps(row | shape))


def environment(device: str) -> dict[str, Any]:
    """What the figures depend on."""
    allocator = {name: os.environ[name] for name in os.environ if name.startswith(("MALLOC_", "GLIBC_", "THP_", "LD_PRELOAD"))}
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    cpu = f"{len(names)} x {names[0]}" if names else platform.machine()
    return {"cpu": cpu, "threads": torch.get_num_threads(), "gpu": gpu, "torch": torch.__version__, "allocator": allocator}


def main() -> None:
    """Measure every model, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--scene")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=16, help="scenes of a training step")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--targets", default="scored", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        return child(args)
    machine, rows = environment(args.device), []
    print(json.dumps(machine))
    print(f"{'model':<24} {'targets':>10} {'parameters':>10} {'latency ms':>10} {'step ms':>9} {'scenes/s':>9} {'peak MB':>8}")
    for name in models(60):
        for targets in ("scored", "all"):
            command = [sys.executable, __file__, *sys.argv[1:], "--only", name, "--targets", targets]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row = {"model": name, "targets_are": targets} | json.loads(done.stdout.splitlines()[-1])
            rows.append(row)
            step, rate = row.get("train_step_ms", 0.0), row.get("train_scenes_per_s", 0.0)
            print(
                f"{name:<24} {row['targets']:>3} {targets:>6} {row['parameters']:>10} {row['latency_ms']:>10.1f} "
                f"{step:>9.1f} {rate:>9.1f} {row['peak_memory_mb']:>8.0f}",
                flush=True,
            )
    print(f"scene {rows[0]['scene']}: {rows[-1]['agents']} agents, {rows[-1]['polylines']} polylines; batch {args.batch}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
