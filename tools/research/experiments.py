"""Experiments of docs/results/simulation.md, and the scene set of docs/results/argoverse1.md.

    python tools/research/experiments.py worlds OUT [--scenes 1200] [--epochs 30] [--seeds 0 1]
    python tools/research/experiments.py branches OUT [--scenes 400] [--epochs 100] [--seeds 0 1]
    python tools/research/experiments.py scene_set --checkpoint RUN/last.ckpt --store STORE

`worlds` and `branches` train a small mmTransformer with six modes on simulated traffic. All
variants have the same number of steps. Data and finished trainings in OUT are reused. Runtime on
one core: 1 to 3 minutes for the data, 2 to 4 minutes for a training. `--json FILE` writes the
metrics.

worlds      Do joint worlds describe a scene better than independent modes of single agents?
            `joint` has the world loss. The set loss gives modes that become worlds by `rank` (the
            k-th most probable mode of each agent) or by `slot` (the mode of the k-th query,
            independent of its score). `se2former` is trained for 2,400 steps. `truth` is the
            recording as the only world. The sixth part of the scenes is the test set.
branches    Does training on several futures of one past cover more futures? `one`: one future per
            past, as in a recording. `each`: every future as a separate scene. `set`: all futures
            of a past, matched one to one with different modes (`data.branches`). A quarter of the
            pasts is the test set.
scene_set   Recall and precision of a scene set. A query with at least the given probability
            predicts its most probable mode. "No agent" has a smaller weight in training, so there
            is one line per threshold. A prediction hits at most one future. The baseline is
            constant velocity with one prediction per target.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is a script in a subfolder of tools

from measure import report

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.synthetic import synthesize
from trajformer.cli.status import exit_status
from trajformer.core.blocks import BlockConfig
from trajformer.data.augment import AugmentConfig
from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.data.loading import BranchDataset, SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.evaluation.metrics.displacement import futures_covered, set_hits
from trajformer.evaluation.metrics.joint import VEHICLE_COLLISION_M, collisions, multi_world
from trajformer.losses.world_loss import WorldLossConfig
from trajformer.models.constant_velocity import ConstantVelocity
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.models.scene_set import SceneSet, SceneTrajectories
from trajformer.models.se2former.model import SE2Former
from trajformer.recipes.checkpoint import load_checkpoint, load_predictor
from trajformer.recipes.names import read_recipe
from trajformer.recipes.recipe import DataConfig, OptimConfig, TrainConfig, TrainerConfig
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

SMALL = MMTransformerConfig(
    num_future=60,
    block=BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0),
    steps_per_token=7,
    motion_layers=(1, 1),
    map_layers=(1, 1),
    social_layers=(1, 2),
    max_neighbors=8,
)
BATCH = BatchConfig(map_radius_m=70.0, polyline_points=6)
BRANCH_BATCH = replace(BATCH, targets="focal")
PREPARE = PrepareOptions(splits=("train", "val"), workers=1)
WORLD_METRICS = ("avgMinFDE", "avgMinADE", "actorMR", "actorCR", "meanCR")
BRANCH_METRICS = ("futures", "pasts")
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)  # smallest probabilities of a query
MAX_BATCH_SIZE = 32
NO_VALIDATION = 10_000  # steps between validations, more than a training has
# rows of metrics by name, of a variant and its checkpoint
Score = Callable[[str, Path], dict[str, list[float]]]


def compare(
    args: argparse.Namespace,
    metrics: tuple[str, ...],
    recipes: dict[str, TrainConfig],
    score: Score,
) -> None:
    """Train missing runs, then print the metrics of each seed and their means over the seeds."""

    def measured() -> Iterator[dict[str, Any]]:
        for seed in args.seeds:
            for variant, config in recipes.items():
                run = args.out / f"{variant}-{seed}"
                train(replace(config, seed=seed), TASK, run, resume=True)
                for name, values in score(variant, run / "last.ckpt").items():
                    row = dict(zip(metrics, values, strict=True))
                    yield {"name": name, "seed": seed, **row}

    table = pd.DataFrame(report(args, {"Metrics": measured()}))
    means = table.groupby("name", sort=False)[list(metrics)].mean()
    print(f"\nMeans\n{means.round(3).to_string()}")


def recipe(model: MMTransformerConfig, data: DataConfig, epochs: int) -> TrainConfig:
    """The recipe of a variant; joint models have the world loss, others the set loss."""
    loss = None
    if model.joint:
        loss = WorldLossConfig()
    trainer = TrainerConfig(epochs, accelerator="cpu", threads=1, validate_every=NO_VALIDATION)
    return TrainConfig(
        model,
        data,
        loss=loss,
        augment=AugmentConfig(heading_noise=0.05, scale=0.1),
        optim=OptimConfig(5e-4, weight_decay=0.01),
        trainer=trainer,
    )


def worlds(args: argparse.Namespace) -> None:
    """The world loss and the set loss."""
    raw = args.out / "raw"
    store = args.out / "store"
    if not (store / "manifest.json").is_file():
        synthesize(raw, args.scenes or 1200, 7, val_fraction=1 / 6, test_fraction=0.0)
        prepare(Argoverse2(), raw, store, PREPARE)

    data = DataConfig(str(store), str(store), cache=True, batch=BATCH)
    marginal = replace(SMALL, max_polylines=32, consensus_m=0.0)
    joint = replace(marginal, joint=True)
    epochs = args.epochs or 30
    se2former_fields = {
        "data.train": str(store),
        "data.val": str(store),
        "trainer.validate_every": NO_VALIDATION,
        "trainer.steps": 2400,
    }
    recipes: dict[str, TrainConfig] = {
        "marginal": recipe(marginal, data, epochs),
        "joint": recipe(joint, data, epochs),
        "se2former": read_recipe("se2former_simulated", se2former_fields),
    }

    def score(variant: str, checkpoint: Path) -> dict[str, list[float]]:
        scores = world_scores(checkpoint, store)
        return {f"{variant} {kind}": values for kind, values in scores.items()}

    compare(args, WORLD_METRICS, recipes, score)


@torch.inference_mode()
def world_scores(checkpoint: Path, store: Path) -> dict[str, list[float]]:
    """Means over the test scenes by kind of worlds."""
    model, config = load_checkpoint(checkpoint, TrainConfig)
    rows: dict[str, list[Tensor]] = {}
    for batch in batches(SceneDataset(SceneStore(store, "val"), config.data.batch)):
        forecast = model(batch.observation)
        has_joint_futures = forecast.is_joint or isinstance(model, SE2Former)
        for name, joint in kinds_of_worlds(forecast, batch, has_joint_futures).items():
            metrics = world_metrics(joint, batch.truth.position, batch.truth.valid)
            rows.setdefault(name, []).append(metrics)
    return {name: torch.cat(parts).mean(0).tolist() for name, parts in rows.items()}


def kinds_of_worlds(
    forecast: Forecast, batch: SceneBatch, has_joint_futures: bool
) -> dict[str, Forecast]:
    """Forecasts with worlds as modes, by the way they were made."""
    kinds = {}
    if has_joint_futures:
        kinds["joint"] = forecast.joint_futures()
    if not forecast.is_joint:
        rank = forecast.logit.argsort(dim=-1, descending=True, stable=True)
        kinds["rank"] = forecast.select(rank)
        kinds["slot"] = replace(forecast, logit=torch.zeros_like(forecast.logit))
    recording = batch.truth.position[:, :, None]
    certain = torch.zeros(batch.num_scenes, 1)
    kinds["truth"] = Forecast(recording, certain, batch.observation.frame)
    return kinds


def world_metrics(forecast: Forecast, target: Tensor, valid: Tensor) -> Tensor:
    """A row of `WORLD_METRICS` for each scene with at least two actors."""
    actor = valid[..., -1]
    num_actors = actor.sum(-1)
    values, _ = multi_world(forecast, target, valid, 6)
    hit = collisions(forecast.in_batch_frame(), actor, VEHICLE_COLLISION_M).double().mean(-1)
    values["meanCR"] = (hit * actor).sum(-1) / num_actors.clamp(min=1)
    rows = torch.stack([values[name].double() for name in WORLD_METRICS], -1)
    return rows[num_actors >= 2]


def branches(args: argparse.Namespace) -> None:
    """Training on one future, on every future, and on the set of futures of each past."""
    raw = args.out / "raw"
    every = args.out / "all"
    first = args.out / "one"
    if not shard_path(first, "val", 0).is_file():  # written last
        num_pasts = args.scenes or 400
        synthesize(raw, num_pasts, 0, val_fraction=0.25, test_fraction=0.0, branches=True)
        prepare(Argoverse2(), raw, every, replace(PREPARE, shard_size=100_000))
        for split in ("train", "val"):
            write_first_branches(every, first, split)
    pasts = len(SceneStore(first, "train"))
    futures = len(SceneStore(every, "train"))
    test_pasts = len(SceneStore(first, "val"))
    test_futures = len(SceneStore(every, "val"))
    print(f"pasts {[pasts, test_pasts]}, futures {[futures, test_futures]} (train, test)")

    # an epoch of `each` has a scene per future; all variants have the same number of steps
    epochs = args.epochs or 100
    fewer_epochs = round(epochs * pasts / futures)
    model = replace(SMALL, max_polylines=48)
    on_first = DataConfig(str(first), str(first), cache=True, bucket=1, batch=BRANCH_BATCH)
    on_each = replace(on_first, train=str(every))
    on_set = replace(on_each, branches=True)
    recipes = {
        "one": recipe(model, on_first, epochs),
        "each": recipe(model, on_each, fewer_epochs),
        "set": recipe(model, on_set, epochs),
    }
    compare(args, BRANCH_METRICS, recipes, lambda name, path: {name: covered(path, every)})


def write_first_branches(every: Path, first: Path, split: str) -> None:
    """Write a store with the first future of each past."""
    scenes = [scene for scene in SceneStore(every, split) if scene.scene_id.endswith(".0")]
    write_shard(shard_path(first, split, 0), scenes, ShardInfo("synthetic", split))


@torch.inference_mode()
def covered(checkpoint: Path, store: Path) -> list[float]:
    """Fractions of test futures that six modes cover, and of pasts with all futures covered."""
    model, _ = load_checkpoint(checkpoint, TrainConfig)
    hit_parts, known_parts = [], []
    for batch in batches(BranchDataset(SceneStore(store, "val"), BRANCH_BATCH)):
        forecast = model(batch.observation)
        hit, is_known = futures_covered(forecast, batch.truth.position, batch.truth.valid, 6)
        hit_parts.append((hit & is_known).flatten(0, 1))
        known_parts.append(is_known.flatten(0, 1))
    covered_futures = torch.cat(hit_parts)
    known_futures = torch.cat(known_parts)
    all_covered = (covered_futures == known_futures).all(-1)
    futures = covered_futures.sum() / known_futures.sum()
    return [float(futures), float(all_covered.float().mean())]


@torch.inference_mode()
def scene_set(args: argparse.Namespace) -> None:
    """Recall and precision at each threshold, then for constant velocity."""
    predictor = load_predictor(args.checkpoint, targets="all")
    if not isinstance(predictor.model, SceneSet):
        raise SystemExit(f"{args.checkpoint} is not a scene set")
    rows = []
    for batch in batches(SceneDataset(SceneStore(args.store, args.split), predictor.batch)):
        trajectories = predictor.model.trajectories(batch.observation)
        for threshold in THRESHOLDS:
            rows.append([f"scene set, {threshold:.2f}", *hits(trajectories, batch, threshold)])
        rows.append(["constant velocity", *hits(constant_velocity(batch), batch, 0.5)])
    columns = ["", "hits", "futures", "claims"]
    table = pd.DataFrame(rows, columns=columns).groupby("", sort=False).sum()
    table["recall"] = table.hits / table.futures
    table["precision"] = table.hits / table.claims
    print(table.round(3).to_string())


def constant_velocity(batch: SceneBatch) -> SceneTrajectories:
    """One trajectory per target, all of the same probability."""
    observation = batch.observation
    position = ConstantVelocity()(observation).position
    logit = torch.where(observation.target_mask, 1.0, -1.0)
    return SceneTrajectories(position, logit, torch.zeros_like(position[..., 0, 0]))


def hits(trajectories: SceneTrajectories, batch: SceneBatch, threshold: float) -> list[int]:
    """Numbers of hit futures, of futures and of predicted trajectories."""
    counts = set_hits(trajectories, batch.truth.position, batch.truth.valid, threshold)
    return [int(count.sum()) for count in counts]


def batches(data: SceneDataset) -> Iterator[SceneBatch]:
    """All batches of a dataset in order."""
    num_batches = math.ceil(len(data) / MAX_BATCH_SIZE)
    for indices in np.array_split(np.arange(len(data)), num_batches):
        yield data[indices.tolist()]


def main() -> int:
    """Run one experiment; returns 1 after an error, such as a missing split."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for run in (worlds, branches):
        command = commands.add_parser(run.__name__, help=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument("out", type=Path)
        command.add_argument("--scenes", type=int, help="number of simulated scenes or pasts")
        command.add_argument("--epochs", type=int)
        command.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
        command.add_argument("--json", type=Path)
    command = commands.add_parser("scene_set", help=scene_set.__doc__)
    command.set_defaults(run=scene_set)
    command.add_argument("--checkpoint", type=Path, required=True)
    command.add_argument("--store", type=Path, required=True)
    command.add_argument("--split", default="val")
    args = parser.parse_args()
    return exit_status("experiments", lambda: args.run(args))


if __name__ == "__main__":
    sys.exit(main())
