"""Do joint worlds describe a scene better than independent modes of single agents? The world loss compared with the set loss.

    python tools/worlds.py OUT [--scenes 1200] [--epochs 30] [--seeds 0 1] [--json FILE]

Traffic is simulated. A sixth of the scenes is the test set; scenes with at least two actors count. A small mmTransformer is
trained twice per seed on the same scenes for the same number of steps: with `joint` and the world loss, and without and with
the set loss. Figures are the multi-world metrics of Argoverse 2 with six worlds, at the world with the lowest mean end-point
error, and meanCR, the share of colliding actors, mean over the six worlds. Modes of single agents become worlds by

rank    the k-th most probable mode of each agent;
slot    the mode of the k-th query of each agent, independent of its score.

Runtime on one core: about 1 minute for the data and 4 minutes per training. Data and finished trainings in OUT are reused.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from measure import environment, write_json
from torch import Tensor

from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.synthetic import synthesize
from trajformer.core.blocks import BlockConfig
from trajformer.data.augment import AugmentConfig
from trajformer.data.forecast import Forecast
from trajformer.data.loading import SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.evaluation.metrics.joint import VEHICLE_COLLISION_M, collided, multi_world
from trajformer.losses.worlds import WorldLossConfig
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import DataConfig, OptimConfig, TrainConfig, TrainerConfig
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

BATCH = BatchConfig(max_agents=16, map_radius_m=70.0, polyline_points=6)
SHOWN = ("avgMinFDE", "avgMinADE", "actorMR", "actorCR", "meanCR")


def make_store(out: Path, scenes: int) -> Path:
    """A store of simulated traffic."""
    store = out / "store"
    if not (store / "manifest.json").is_file():
        synthesize(out / "raw", scenes, 7, val_fraction=1 / 6, test_fraction=0.0)
        prepare(Argoverse2(), out / "raw", store, PrepareOptions(splits=("train", "val"), workers=1))
    return store


def recipe(joint: bool, store: Path, epochs: int, seed: int) -> TrainConfig:
    """The recipe of one training."""
    block = BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0)
    model = MMTransformerConfig(
        60, block=block, steps_per_token=7, motion_layers=(1, 1), map_layers=(1, 1), social_layers=(1, 2), max_polylines=32,
        max_neighbors=8, consensus_m=0.0, joint=joint,
    )  # fmt: skip
    return TrainConfig(
        model,
        DataConfig(str(store), str(store), cache=True, batch=BATCH),
        loss=WorldLossConfig() if joint else None,
        augment=AugmentConfig(heading_noise=0.05, scale=0.1),
        optim=OptimConfig(5e-4, weight_decay=0.01),
        trainer=TrainerConfig(epochs, "cpu", threads=1, validate_every=10_000),
        seed=seed,
    )


def by_rank(forecast: Forecast) -> Forecast:
    """The modes of each agent, the most probable first."""
    return forecast.select(forecast.logit.argsort(dim=-1, descending=True, stable=True))


def figures(forecast: Forecast, target: Tensor, valid: Tensor) -> Tensor:
    """A row of `SHOWN` for each scene with at least two actors."""
    actor = valid[..., -1]
    values, _ = multi_world(forecast, target, valid, 6)
    hit = collided(forecast.in_batch_frame(), actor, VEHICLE_COLLISION_M).double().mean(-1)
    values["meanCR"] = (hit * actor).sum(-1) / actor.sum(-1).clamp(min=1)
    return torch.stack([values[name].double() for name in SHOWN], -1)[actor.sum(-1) >= 2]


@torch.inference_mode()
def score(checkpoint: Path, store: Path) -> dict[str, list[float]]:
    """Means over the test scenes by kind of worlds; `truth` is the recording as the only world."""
    model, config = load_checkpoint(checkpoint, TrainConfig)
    data, rows = SceneDataset(SceneStore(store, "val"), config.data.batch), dict[str, list[Tensor]]()
    for start in range(0, len(data), 32):
        batch = data[range(start, min(start + 32, len(data)))]
        truth = batch.truth
        forecast = model(batch.observation)
        made = {"joint": forecast} if forecast.is_joint else {"rank": by_rank(forecast), "slot": by_slot(forecast)}
        made["truth"] = Forecast(truth.position[:, :, None], torch.zeros(batch.num_scenes, 1), batch.observation.frame)
        for name, worlds in made.items():
            rows.setdefault(name, []).append(figures(worlds, truth.position, truth.valid))
    return {name: torch.cat(parts).mean(0).tolist() for name, parts in rows.items()}


def by_slot(forecast: Forecast) -> Forecast:
    """All modes with the same score, in the order of the queries."""
    return replace(forecast, logit=torch.zeros_like(forecast.logit))


def main() -> None:
    """Train missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scenes", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    store, rows = make_store(args.out, args.scenes), []
    print(f"{'':14s}" + "".join(f"{name:>11s}" for name in SHOWN))
    for seed in args.seeds:
        for joint in (False, True):
            run = args.out / f"{'joint' if joint else 'marginal'}-{seed}"
            train(recipe(joint, store, args.epochs, seed), TASK, run, resume=True)
            for name, values in score(run / "last.ckpt", store).items():
                rows.append({"worlds": name, "seed": seed} | dict(zip(SHOWN, values, strict=True)))
                print(f"seed {seed}  {name:6s} " + "".join(f"{value:11.3f}" for value in values), flush=True)
    for name in ("truth", "rank", "slot", "joint"):
        mean = np.mean([[row[key] for key in SHOWN] for row in rows if row["worlds"] == name], axis=0)
        print(f"mean    {name:6s} " + "".join(f"{value:11.3f}" for value in mean))
    if args.json:
        write_json(args.json, rows, environment())


if __name__ == "__main__":
    main()
