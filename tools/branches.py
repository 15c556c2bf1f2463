"""Does training on several futures of one past cover more of what can happen? The set loss against winner takes all.

    python tools/branches.py OUT [--pasts 400] [--epochs 100] [--seeds 0 1] [--json FILE]

Traffic is simulated: vehicles before a junction, each with two or three futures, in which it goes different ways; a quarter
of the pasts are kept for the test. One small mmTransformer with six modes is trained three times for each seed, with as many
steps each time, from the same weights and in the same order:

one     one future of each past, as a recording has it; the nearest mode learns (winner takes all).
each    every future of each past, as scenes of their own; winner takes all. The data of `set`, one future at a time.
set     all futures of a past at once, matched one to one to different modes (`data.branches`).

What is printed is the share of true futures of the test's pasts that end within 2 m of one of the six modes. About 3 minutes
for the data and 2 for each training, on one core. Data and finished trainings in OUT are used again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.synthetic import synthesize
from trajformer.core.blocks import BlockConfig
from trajformer.data.augment import AugmentConfig
from trajformer.data.loading import BranchDataset
from trajformer.data.sample import BatchConfig
from trajformer.evaluation.metrics.coverage import futures_covered
from trajformer.models import MMTransformerConfig, ModelConfig
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import DataConfig, OptimConfig, TrainConfig, TrainerConfig
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

KINDS = ("one", "each", "set")
BATCH = BatchConfig(targets="focal", max_agents=8, map_radius_m=70.0, polyline_points=6)


def make_stores(out: Path, pasts: int, seed: int) -> dict[str, Path]:
    """Stores of all futures, and of the first of each past, by kind of training."""
    every, first = out / "all", out / "one"
    if not shard_path(first, "val", 0).is_file():  # it is written last
        synthesize(out / "raw", pasts, seed, val_fraction=0.25, test_fraction=0.0, branches=True)
        prepare(Argoverse2(), out / "raw", every, PrepareOptions(splits=("train", "val"), workers=1, shard_size=100_000))
        for split in ("train", "val"):
            scenes = [scene for scene in SceneStore(every, split) if scene.scene_id.endswith(".0")]
            write_shard(shard_path(first, split, 0), scenes, ShardInfo("synthetic", split))
    return {"one": first, "each": every, "set": every}


def recipe(kind: str, stores: dict[str, Path], epochs: int, seed: int) -> TrainConfig:
    """The recipe of one training; `each` has more scenes in an epoch and fewer epochs."""
    block = BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0)
    model = MMTransformerConfig(
        60, block=block, steps_per_token=7, motion_layers=(1, 1), map_layers=(1, 1), social_layers=(1, 2), max_polylines=48,
        max_neighbors=8,
    )  # fmt: skip
    share = len(SceneStore(stores["one"], "train")) / len(SceneStore(stores["each"], "train")) if kind == "each" else 1.0
    store = str(stores[kind])
    return TrainConfig(
        ModelConfig(mmtransformer=model),
        DataConfig(store, str(stores["one"]), cache=True, bucket=1, branches=kind == "set", batch=BATCH),
        augment=AugmentConfig(heading_noise=0.05, scale=0.1),
        optim=OptimConfig(5e-4, weight_decay=0.01),
        trainer=TrainerConfig(round(epochs * share), "cpu", threads=1, validate_every=10_000),
        seed=seed,
    )


@torch.inference_mode()
def covered(checkpoint: Path, store: Path) -> tuple[float, float]:
    """Shares of the test's futures, and of its pasts with all their futures, that six modes cover."""
    model, _ = load_checkpoint(checkpoint, TrainConfig)
    data = BranchDataset(SceneStore(store, "val"), BATCH)
    hits, counts = [], []
    for start in range(0, len(data), 32):
        batch = data[range(start, min(start + 32, len(data)))]
        hit, known = futures_covered(model(batch), batch.target, batch.target_valid, 6)
        hits.append((hit & known).flatten(0, 1))
        counts.append(known.flatten(0, 1))
    hit, known = torch.cat(hits), torch.cat(counts)
    return float(hit.sum() / known.sum()), float((hit == known).all(-1).float().mean())


def main() -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pasts", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    stores = make_stores(args.out, args.pasts, seed=0)
    sizes = {name: [len(SceneStore(stores[name], split)) for split in ("train", "val")] for name in ("one", "each")}
    print(f"pasts {sizes['one']}, futures {sizes['each']} (to train on and to test)")
    rows = []
    for seed in args.seeds:
        for kind in KINDS:
            run = args.out / f"{kind}-{seed}"
            train(recipe(kind, stores, args.epochs, seed), TASK, run, resume=True)
            futures, pasts = covered(run / "last.ckpt", stores["set"])
            rows.append({"kind": kind, "seed": seed, "futures": futures, "pasts": pasts})
            print(f"seed {seed}  {kind:5s} futures covered {futures:6.1%}  pasts with all covered {pasts:6.1%}", flush=True)
    for kind in KINDS:
        mean = np.mean([[row["futures"], row["pasts"]] for row in rows if row["kind"] == kind], axis=0)
        print(f"mean    {kind:5s} futures covered {mean[0]:6.1%}  pasts with all covered {mean[1]:6.1%}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
