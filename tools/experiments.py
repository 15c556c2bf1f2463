"""Experiments of docs/results/simulation.md (`worlds`, `branches`) and the scene set in docs/results/argoverse1.md.

    python tools/experiments.py worlds OUT [--scenes 1200] [--epochs 30] [--seeds 0 1] [--json FILE]
    python tools/experiments.py branches OUT [--scenes 400] [--epochs 100] [--seeds 0 1] [--json FILE]
    python tools/experiments.py scene_set --checkpoint RUN/last.ckpt --store STORE [--split val]

`worlds` and `branches` train a small mmTransformer with six modes on simulated traffic. All variants have the same number of
steps. Data and finished trainings in OUT are reused. Runtime on one core: 1 to 3 minutes for the data, 2 to 4 minutes for a
training.

worlds      Do joint worlds describe a scene better than independent modes of single agents? `joint` has the world loss. The set
            loss gives modes that become worlds by `rank` (the k-th most probable mode of each agent) or by `slot` (the mode of
            the k-th query, independent of its score). `se2former` is trained for 2,400 steps. `truth` is the recording
            as the only world. The sixth part of the scenes is the test set.
branches    Does training on several futures of one past cover more futures? `one`: one future per past, as in a recording.
            `each`: every future as a separate scene. `set`: all futures of a past, matched one to one with different modes
            (`data.branches`). A quarter of the pasts is the test set.
scene_set   Recall and precision of a scene set. A query with at least the given probability predicts its most probable mode.
            "No agent" has a smaller weight in training, so there is one line per threshold. A prediction hits at most one
            future. The baseline is constant velocity with one prediction per target.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from measure import report
from torch import Tensor

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.synthetic import synthesize
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
    60, block=BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0), steps_per_token=7, motion_layers=(1, 1),
    map_layers=(1, 1), social_layers=(1, 2), max_neighbors=8,
)  # fmt: skip
BATCH = BatchConfig(max_agents=16, map_radius_m=70.0, polyline_points=6)
BRANCH_BATCH = replace(BATCH, targets="focal", max_agents=8)
WORLD_FIGURES = ("avgMinFDE", "avgMinADE", "actorMR", "actorCR", "meanCR")
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)  # smallest probabilities of a query
Score = Callable[
    [str, Path], dict[str, list[float]]
]  # figures by name, of a variant and its checkpoint


def compare(
    args: argparse.Namespace,
    metrics: tuple[str, ...],
    recipes: dict[str, TrainConfig],
    score: Score,
) -> None:
    """Train missing runs, then print the figures of each seed and their means over the seeds."""

    def measured() -> Iterator[dict[str, Any]]:
        for seed in args.seeds:
            for variant, config in recipes.items():
                run = args.out / f"{variant}-{seed}"
                train(replace(config, seed=seed), TASK, run, resume=True)
                for name, values in score(variant, run / "last.ckpt").items():
                    yield {"name": name, "seed": seed} | dict(zip(metrics, values, strict=True))

    table = pd.DataFrame(report(args, {"Figures": measured()}))
    print(
        "\nMeans\n" + table.groupby("name", sort=False)[list(metrics)].mean().round(3).to_string()
    )


def recipe(model: MMTransformerConfig, data: DataConfig, epochs: int) -> TrainConfig:
    """The recipe of a variant; joint models have the world loss, others the set loss."""
    return TrainConfig(
        model,
        data,
        loss=WorldLossConfig() if model.joint else None,
        augment=AugmentConfig(heading_noise=0.05, scale=0.1),
        optim=OptimConfig(5e-4, weight_decay=0.01),
        trainer=TrainerConfig(epochs, accelerator="cpu", threads=1, validate_every=10_000),
    )


def worlds(args: argparse.Namespace) -> None:
    """The world loss and the set loss."""
    store = args.out / "store"
    if not (store / "manifest.json").is_file():
        synthesize(args.out / "raw", args.scenes or 1200, 7, val_fraction=1 / 6, test_fraction=0.0)
        prepare(
            Argoverse2(),
            args.out / "raw",
            store,
            PrepareOptions(splits=("train", "val"), workers=1),
        )
    model, data = (
        replace(SMALL, max_polylines=32, consensus_m=0.0),
        DataConfig(str(store), str(store), cache=True, batch=BATCH),
    )
    recipes: dict[str, TrainConfig] = {
        name: recipe(replace(model, joint=name == "joint"), data, args.epochs or 30)
        for name in ("marginal", "joint")
    }
    stores = {
        "data.train": str(store),
        "data.val": str(store),
        "trainer.validate_every": 10_000,
        "trainer.steps": 2400,
    }
    recipes["se2former"] = read_recipe("se2former_simulated", stores)

    def score(variant: str, checkpoint: Path) -> dict[str, list[float]]:
        return {
            f"{variant} {kind}": values for kind, values in world_scores(checkpoint, store).items()
        }

    compare(args, WORLD_FIGURES, recipes, score)


@torch.inference_mode()
def world_scores(checkpoint: Path, store: Path) -> dict[str, list[float]]:
    """Means over the test scenes by kind of worlds."""
    model, config = load_checkpoint(checkpoint, TrainConfig)
    rows: dict[str, list[Tensor]] = {}
    for batch in batches(SceneDataset(SceneStore(store, "val"), config.data.batch)):
        truth, forecast = batch.truth, model(batch.observation)
        kinds = (
            {"joint": forecast.joint_futures()}
            if forecast.is_joint or isinstance(model, SE2Former)
            else {}
        )
        if not forecast.is_joint:
            by_rank = forecast.select(forecast.logit.argsort(dim=-1, descending=True, stable=True))
            kinds |= {
                "rank": by_rank,
                "slot": replace(forecast, logit=torch.zeros_like(forecast.logit)),
            }
        kinds["truth"] = Forecast(
            truth.position[:, :, None], torch.zeros(batch.num_scenes, 1), batch.observation.frame
        )
        for name, made in kinds.items():
            rows.setdefault(name, []).append(world_metrics(made, truth.position, truth.valid))
    return {name: torch.cat(parts).mean(0).tolist() for name, parts in rows.items()}


def world_metrics(forecast: Forecast, target: Tensor, valid: Tensor) -> Tensor:
    """A row of `WORLD_FIGURES` for each scene with at least two actors."""
    actor = valid[..., -1]
    values, _ = multi_world(forecast, target, valid, 6)
    hit = collisions(forecast.in_batch_frame(), actor, VEHICLE_COLLISION_M).double().mean(-1)
    values["meanCR"] = (hit * actor).sum(-1) / actor.sum(-1).clamp(min=1)
    return torch.stack([values[name].double() for name in WORLD_FIGURES], -1)[actor.sum(-1) >= 2]


def branches(args: argparse.Namespace) -> None:
    """Training on one future, on every future, and on the set of futures of each past."""
    every, first = args.out / "all", args.out / "one"
    if not shard_path(first, "val", 0).is_file():  # written last
        synthesize(
            args.out / "raw",
            args.scenes or 400,
            0,
            val_fraction=0.25,
            test_fraction=0.0,
            branches=True,
        )
        prepare(
            Argoverse2(),
            args.out / "raw",
            every,
            PrepareOptions(splits=("train", "val"), workers=1, shard_size=100_000),
        )
        for split in ("train", "val"):
            scenes = [scene for scene in SceneStore(every, split) if scene.scene_id.endswith(".0")]
            write_shard(shard_path(first, split, 0), scenes, ShardInfo("synthetic", split))
    stores = {"one": first, "each": every, "set": every}
    sizes = {
        name: [len(SceneStore(stores[name], split)) for split in ("train", "val")]
        for name in ("one", "each")
    }
    print(f"pasts {sizes['one']}, futures {sizes['each']} (train, test)")
    steps = (args.epochs or 100) * sizes["one"][0]  # the same for all variants
    recipes = {}
    for name, store in stores.items():
        data = DataConfig(
            str(store), str(first), cache=True, bucket=1, branches=name == "set", batch=BRANCH_BATCH
        )
        epochs = round(steps / sizes["each" if name == "each" else "one"][0])
        recipes[name] = recipe(replace(SMALL, max_polylines=48), data, epochs)
    compare(args, ("futures", "pasts"), recipes, lambda name, path: {name: covered(path, every)})


@torch.inference_mode()
def covered(checkpoint: Path, store: Path) -> list[float]:
    """Share of test futures that six modes cover, and share of pasts with all futures covered."""
    model, _ = load_checkpoint(checkpoint, TrainConfig)
    parts = []
    for batch in batches(BranchDataset(SceneStore(store, "val"), BRANCH_BATCH)):
        hit, known = futures_covered(
            model(batch.observation), batch.truth.position, batch.truth.valid, 6
        )
        parts.append(torch.stack([hit & known, known]).flatten(1, 2))
    hit, known = torch.cat(parts, 1)
    return [float(hit.sum() / known.sum()), float((hit == known).all(-1).float().mean())]


@torch.inference_mode()
def scene_set(args: argparse.Namespace) -> None:
    """Recall and precision at each threshold, then for constant velocity."""
    predictor = load_predictor(args.checkpoint, targets="all")
    if not isinstance(predictor.model, SceneSet):
        raise SystemExit(f"{args.checkpoint} is not a scene set")
    rows = []
    for batch in batches(SceneDataset(SceneStore(args.store, args.split), predictor.batch)):
        observation, truth = batch.observation, batch.truth
        straight = ConstantVelocity()(observation).position
        logit = torch.where(observation.target_mask, 1.0, -1.0)
        baseline = SceneTrajectories(straight, logit, torch.zeros_like(straight[..., 0, 0]))
        found = predictor.model.trajectories(observation)
        cases = [(f"scene set, {threshold:.2f}", found, threshold) for threshold in THRESHOLDS]
        for name, trajectories, threshold in [*cases, ("constant velocity", baseline, 0.5)]:
            counts = set_hits(trajectories, truth.position, truth.valid, threshold)
            rows.append([name, *(int(count.sum()) for count in counts)])
    table = (
        pd.DataFrame(rows, columns=["", "hits", "futures", "claims"]).groupby("", sort=False).sum()
    )
    print(
        table.assign(recall=table.hits / table.futures, precision=table.hits / table.claims)
        .round(3)
        .to_string()
    )


def batches(data: SceneDataset) -> Iterator[SceneBatch]:
    """All batches of a dataset in order."""
    for indices in np.array_split(np.arange(len(data)), -(-len(data) // 32)):
        yield data[indices.tolist()]


def main() -> None:
    """Run one experiment."""
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
    args.run(args)


if __name__ == "__main__":
    main()
