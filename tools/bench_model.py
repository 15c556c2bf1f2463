"""Latency at batch 1, training throughput, memory and size of models on one fixed scene of real size.

    python tools/bench_model.py [--store STORE --scene ID] [--device cpu] [--json FILE]

Without --store the scene is simulated (seed 0). `all` rows forecast every agent with a valid last step, `scored` rows only
the scored agents. Figures are medians of repeated runs. Each row is measured in a separate process, for the peak memory.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from measure import median_ms, new_parser, parse, peak_mb, report, run_only

from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.synthetic import synthesize
from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.models.mmtransformer import MMTransformerConfig
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore

SMALL = MMTransformerConfig(
    60, block=BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0), steps_per_token=5, motion_layers=(1, 1),
    map_layers=(1, 1), social_layers=(1, 2), max_polylines=48, max_neighbors=8,
)  # fmt: skip
MODELS = {
    "constant_velocity": TrainConfig(ConstantVelocityConfig(modes=6)),
    "mmtransformer (recipe)": TrainConfig(SMALL),
    "mmtransformer (paper)": TrainConfig(MMTransformerConfig(60, neighbour_map=True)),
}


def load_scene(store: Path | None, scene_id: str | None) -> Scene:
    """A training scene of a store, or a simulated scene."""
    if store is not None:
        scenes = SceneStore(store, "train")
        return scenes[scenes.find([scene_id])[0] if scene_id else 0]
    with tempfile.TemporaryDirectory() as folder:
        raw, reader = Path(folder), Argoverse2()
        synthesize(raw, 3, 0, progress=False)
        return reader.read(reader.inputs(raw, "train")[0], "train", raw)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Figures of one row: forward at batch 1, forward and backward of a batch."""
    scene, config = load_scene(args.store, args.scene), BatchConfig(args.targets, max_agents=256, polyline_points=6)
    single, many = (collate([scene] * size, config).to(args.device) for size in (1, args.batch))
    torch.manual_seed(0)
    recipe = MODELS[args.only]
    model = recipe.build_model().to(args.device).eval()
    observation = single.observation
    row: dict[str, Any] = {
        "targets": int(observation.target_mask.sum()),
        "latency_ms": median_ms(torch.inference_mode()(lambda: model(observation)), args.repeats, args.device),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if row["parameters"]:
        loss = recipe.build_loss(model.train())

        def train_step() -> None:
            model.zero_grad()
            loss(model, many)["loss"].backward()

        step = median_ms(train_step, max(args.repeats // 4, 3), args.device)
        row |= {"train_step_ms": step, "train_scenes_per_s": many.num_scenes / step * 1e3}
    row |= {"agents": int(observation.agent_mask.sum()), "polylines": int(observation.polyline_mask.sum())}
    return row | {"scene": scene.scene_id, "peak_memory_mb": peak_mb(args.device)}


def main() -> None:
    """Measure every model."""
    parser = new_parser(__doc__, repeats=20, device=True)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--scene")
    parser.add_argument("--batch", type=int, default=16, help="scenes of a training step")
    parser.add_argument("--targets", default="scored", help=argparse.SUPPRESS)
    args = parse(parser)
    if args.only:
        print(json.dumps(measure(args)))
        return
    kinds = [(name, targets) for name in MODELS for targets in ("scored", "all")]
    rows = ({"model": name, "of": targets} | run_only(name, "--targets", targets) for name, targets in kinds)
    report(args, {f"Batches of {args.batch} scenes": rows})


if __name__ == "__main__":
    main()
