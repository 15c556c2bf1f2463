"""Does training on several futures of one past cover more possible futures? The set loss compared with winner-takes-all.

    python tools/branches.py OUT [--pasts 400] [--epochs 100] [--seeds 0 1] [--json FILE]

Traffic is simulated: vehicles before a junction, each with two or three futures with different routes. A quarter of the pasts
is the test set. A small mmTransformer with six modes is trained in three variants per seed, with the same number of steps,
the same initial weights and the same order:

one     one future per past, as in a recording; the nearest mode is trained (winner takes all).
each    every future as a separate scene; winner takes all. The data of `set`, one future at a time.
set     all futures of a past together, matched one to one with different modes (`data.branches`).

The result is the share of the true futures in the test set that end within 2 m of one of the six modes. Runtime on one core:
about 3 minutes for the data and 2 minutes per training. Data and finished trainings in OUT are reused.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from measure import environment, write_json

from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.synthetic import synthesize
from trajformer.core.blocks import BlockConfig
from trajformer.data.augment import AugmentConfig
from trajformer.data.loading import BranchDataset
from trajformer.data.sample import BatchConfig
from trajformer.evaluation.metrics.coverage import futures_covered
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import DataConfig, OptimConfig, TrainConfig, TrainerConfig
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

VARIANTS = ("one", "each", "set")
BATCH = BatchConfig(targets="focal", max_agents=8, map_radius_m=70.0, polyline_points=6)


def make_stores(out: Path, pasts: int, seed: int) -> dict[str, Path]:
    """The store of each variant: with all futures, or with the first future of each past."""
    every, first = out / "all", out / "one"
    if not shard_path(first, "val", 0).is_file():  # written last
        synthesize(out / "raw", pasts, seed, val_fraction=0.25, test_fraction=0.0, branches=True)
        prepare(Argoverse2(), out / "raw", every, PrepareOptions(splits=("train", "val"), workers=1, shard_size=100_000))
        for split in ("train", "val"):
            scenes = [scene for scene in SceneStore(every, split) if scene.scene_id.endswith(".0")]
            write_shard(shard_path(first, split, 0), scenes, ShardInfo("synthetic", split))
    return {"one": first, "each": every, "set": every}


def recipe(variant: str, stores: dict[str, Path], epochs: int, seed: int) -> TrainConfig:
    """The recipe of a variant; `each` has more scenes per epoch and fewer epochs."""
    block = BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0)
    model = MMTransformerConfig(
        60, block=block, steps_per_token=7, motion_layers=(1, 1), map_layers=(1, 1), social_layers=(1, 2), max_polylines=48,
        max_neighbors=8,
    )  # fmt: skip
    share = len(SceneStore(stores["one"], "train")) / len(SceneStore(stores["each"], "train")) if variant == "each" else 1.0
    store = str(stores[variant])
    return TrainConfig(
        model,
        DataConfig(store, str(stores["one"]), cache=True, bucket=1, branches=variant == "set", batch=BATCH),
        augment=AugmentConfig(heading_noise=0.05, scale=0.1),
        optim=OptimConfig(5e-4, weight_decay=0.01),
        trainer=TrainerConfig(round(epochs * share), "cpu", threads=1, validate_every=10_000),
        seed=seed,
    )


@torch.inference_mode()
def covered(checkpoint: Path, store: Path) -> tuple[float, float]:
    """Share of test futures that six modes cover, and share of pasts with all futures covered."""
    model, _ = load_checkpoint(checkpoint, TrainConfig)
    data = BranchDataset(SceneStore(store, "val"), BATCH)
    hits, counts = [], []
    for start in range(0, len(data), 32):
        batch = data[range(start, min(start + 32, len(data)))]
        hit, known = futures_covered(model(batch.observation), batch.truth.position, batch.truth.valid, 6)
        hits.append((hit & known).flatten(0, 1))
        counts.append(known.flatten(0, 1))
    hit, known = torch.cat(hits), torch.cat(counts)
    return float(hit.sum() / known.sum()), float((hit == known).all(-1).float().mean())


def main() -> None:
    """Train missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pasts", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    stores = make_stores(args.out, args.pasts, seed=0)
    sizes = {name: [len(SceneStore(stores[name], split)) for split in ("train", "val")] for name in ("one", "each")}
    print(f"pasts {sizes['one']}, futures {sizes['each']} (train, test)")
    rows = []
    for seed in args.seeds:
        for variant in VARIANTS:
            run = args.out / f"{variant}-{seed}"
            train(recipe(variant, stores, args.epochs, seed), TASK, run, resume=True)
            futures, pasts = covered(run / "last.ckpt", stores["set"])
            rows.append({"variant": variant, "seed": seed, "futures": futures, "pasts": pasts})
            print(f"seed {seed}  {variant:5s} futures covered {futures:6.1%}  pasts with all covered {pasts:6.1%}", flush=True)
    for variant in VARIANTS:
        futures, pasts = np.mean([[row["futures"], row["pasts"]] for row in rows if row["variant"] == variant], axis=0)
        print(f"mean    {variant:5s} futures covered {futures:6.1%}  pasts with all covered {pasts:6.1%}")
    if args.json:
        write_json(args.json, rows, environment())


if __name__ == "__main__":
    main()
