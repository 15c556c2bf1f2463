"""Latency of SE2Former and its growth with the size of a scene, and the cost of a training.

    python tools/bench_forecast.py --store STORE [--scene ID] [--repeats N] [--threads 1]

STORE holds Argoverse 2 scenarios (`trajformer preprocess argoverse2`), and ID is the beginning of a
scene id. Weights are random: they do not change the time. A kept map is encoded once for many
forecasts. The peer in the same run is mmTransformer. Larger scenes consist of copies of the agents
and lanes of this scene at random places, with its density: one agent in 1,250 square metres, and
five pieces of lanes for each agent. "linear" is the time for an agent relative to that in the scene
with 64 agents. A training step of the recipe for Argoverse 2 has the scenes of the split, repeated;
"epoch, h" is the time for the training part of the full data set. "threads" has the shortest time
of a forecast by number of agents, all targets, with one thread and with two: medians on a
shared machine would include its other work. `--json FILE` writes the tables.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from measure import (
    median_ms,
    medians_ms,
    new_parser,
    parse,
    peak_mb,
    report,
    reset_peak,
    times_s,
    training_step,
)
from torch import Tensor

from trajformer.cli.status import exit_status
from trajformer.data.augment import augment
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.loading import SceneDataset
from trajformer.errors import TrajformerError
from trajformer.models.forecaster import Forecaster
from trajformer.models.se2former.model import SE2Former
from trajformer.recipes.names import read_recipe
from trajformer.scenes.store import SceneStore

SCENE = "0a1e6f0a"
# mmTransformer in the width and depths of its paper, for Argoverse 2.
PEER = "mmtransformer_argoverse1"
PEER_CHANGES = {
    "model.mmtransformer.num_future": 60,
    "model.mmtransformer.steps_per_token": 5,
    "model.mmtransformer.block": {"width": 128, "heads": 4, "feedforward": 256, "dropout": 0.1},
    "model.mmtransformer.motion_layers": [2, 2],
    "model.mmtransformer.map_layers": [2, 2],
    "model.mmtransformer.social_layers": [2, 4],
    "model.mmtransformer.max_polylines": 80,
    "model.mmtransformer.max_neighbors": 24,
    "data.batch.map_radius_m": 80.0,
    "data.batch.polyline_points": 8,
    "data.batch.polyline_length_m": 20.0,
}
SIZES = ((64, 320), (128, 640), (256, 1280), (512, 2560), (256, 2000))  # agents and pieces of lanes
THREADS = (1, 2)
AGENTS_BY_THREADS = (1, 10, 50, 200)
LANES_PER_AGENT = 5
MIN_LANES = 50
AREA_M2 = 1250.0  # of an agent
FULL_SCENES = 199_908  # of the training part of Argoverse 2


def load(
    recipe: str, store: SceneStore, index: int, targets: str
) -> tuple[Forecaster, Observation]:
    """A model with random weights and its input for one scene."""
    changes = PEER_CHANGES if recipe == PEER else {}
    config = read_recipe(recipe, changes)
    torch.manual_seed(0)
    scenes = SceneDataset(store, replace(config.data.batch, targets=targets))
    return config.build_model().eval(), scenes[[index]].observation


def enlarged(observation: Observation, agents: int, lanes: int) -> Observation:
    """Copies of the agents and lanes of a scene at random places of a square.

    All agents are targets.
    """
    # copy agents and lanes; an axis that has neither size belongs to the targets
    counts = {observation.agent_mask.shape[1]: agents, observation.polyline_mask.shape[1]: lanes}
    copies = {}
    for name, value in vars(observation).items():
        if isinstance(value, Tensor) and value.ndim >= 2 and name != "frame_pose":
            size = value.shape[1]
            copies[name] = value[:, torch.arange(counts.get(size, agents)) % size]
    copied = replace(observation, **copies)

    # move each copy to a random point
    side_m = (agents * AREA_M2) ** 0.5
    random = torch.Generator().manual_seed(agents)
    agent_point = side_m * torch.rand(1, agents, 2, generator=random)
    lane_point = side_m * torch.rand(1, lanes, 2, generator=random)
    agent_shift = agent_point - copied.pose[..., :2]
    lane_shift = lane_point - copied.polyline[:, :, 0]
    return replace(
        copied,
        position=copied.position + agent_shift[:, :, None],
        pose=torch.cat([agent_point, copied.pose[..., 2:]], -1),
        polyline=copied.polyline + lane_shift[:, :, None],
    )


@torch.inference_mode()
def one_scene(store: SceneStore, index: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Rows of the two models for the same scene."""
    runs: dict[str, Callable[[], object]] = {}
    sizes: dict[str, dict[str, int]] = {}
    for label, recipe, targets in (
        ("SE2Former, all agents", "se2former_argoverse2", "all"),
        ("SE2Former, focal agent", "se2former_argoverse2", "focal"),
        ("mmTransformer, all agents", PEER, "all"),
        ("mmTransformer, focal agent", PEER, "focal"),
    ):
        model, observation = load(recipe, store, index, targets)
        runs[label] = partial(model, observation)
        sizes[label] = {
            "targets": observation.num_targets,
            "agents": observation.agent_mask.shape[1],
            "lanes": observation.polyline_mask.shape[1],
        }
        if isinstance(model, SE2Former):
            kept_map = f"{label}, kept map"
            lanes = model.encode_map(observation)
            runs[kept_map] = partial(forecast_with_map, model, observation, lanes)
            sizes[kept_map] = sizes[label]
    for label, time in medians_ms(runs, repeats).items():
        yield {"model": label, **sizes[label], "ms": time}


def forecast_with_map(model: SE2Former, observation: Observation, lanes: Any) -> Forecast:
    """A forecast with lanes that were encoded before."""
    return model.forecast(observation, lanes, model.encode_agents(observation, lanes))


@torch.inference_mode()
def larger_scenes(store: SceneStore, index: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Rows of SE2Former for growing scenes."""
    model, observation = load("se2former_argoverse2", store, index, "all")
    runs = {}
    for agents, lanes in SIZES:
        scene = enlarged(observation, agents, lanes)
        runs[f"{agents} agents, {lanes} lanes"] = partial(model, scene)
    # alternating, so that all sizes see the same machine
    times = list(medians_ms(runs, repeats).values())
    first_per_agent = times[0] / SIZES[0][0]
    for (agents, lanes), time in zip(SIZES, times, strict=True):
        linear = time / agents / first_per_agent
        yield {"agents": agents, "lanes": lanes, "ms": time, "linear": linear}


@torch.inference_mode()
def threads(store: SceneStore, index: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Rows of the shortest time of a forecast by number of agents and threads."""
    model, observation = load("se2former_argoverse2", store, index, "all")
    before = torch.get_num_threads()
    for agents in AGENTS_BY_THREADS:
        lanes = max(LANES_PER_AGENT * agents, MIN_LANES)
        scene = enlarged(observation, agents, lanes)
        runs = {f"{n} threads, ms": partial(with_threads, n, model, scene) for n in THREADS}
        times = times_s(runs, repeats, warm_up=3)
        shortest = {name: 1e3 * float(values[:, 0].min()) for name, values in times.items()}
        yield {"agents": agents, "lanes": lanes, **shortest}
    torch.set_num_threads(before)


def with_threads(count: int, model: Forecaster, observation: Observation) -> Forecast:
    """A forecast with a number of threads."""
    torch.set_num_threads(count)
    forecast: Forecast = model(observation)
    return forecast


def training(store: SceneStore, index: int, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for a training step, augmentation and optimiser included; `index` is not used."""
    recipe = read_recipe("se2former_argoverse2")
    torch.manual_seed(0)
    model = recipe.build_model().train()
    loss = SE2Former.losses[0]().build()
    size = recipe.data.batch_size
    indices = [number % len(store) for number in range(size)]
    batch = SceneDataset(store, recipe.data.train_batch)[indices]
    random = torch.Generator().manual_seed(0)

    def value() -> Tensor:
        return loss(model, augment(batch, recipe.augment, random))["loss"]

    step = training_step(value, model, loss, recipe.optim)
    start_mb = reset_peak("cpu")
    time = median_ms(step, repeats)
    yield {
        "scenes": size,
        "step, ms": time,
        "scenes/s": 1e3 * size / time,
        "epoch, h": FULL_SCENES / size * time / 3.6e6,
        "MB": peak_mb("cpu") - start_mb,
    }


TABLES = {
    "scene": one_scene,
    "larger": larger_scenes,
    "threads": threads,
    "training": training,
}


def main() -> int:
    """Measure and print the tables; returns 1 after an error, such as a missing split."""
    parser = new_parser(__doc__, repeats=15)
    parser.add_argument("--store", required=True)
    parser.add_argument("--split", default="train")
    parser.add_argument("--scene", default=SCENE)
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES))
    args = parse(parser)
    return exit_status("bench_forecast", lambda: run(args), "")


def run(args: argparse.Namespace) -> None:
    """Measure and print the tables of the command line."""
    store = SceneStore(args.store, args.split)
    matching = [i for i, name in enumerate(store.scene_ids()) if name.startswith(args.scene)]
    if not matching:
        raise TrajformerError(f"{args.store}: no scene {args.scene} in split {args.split}")
    index = matching[0]
    tables = {name: TABLES[name](store, index, args.repeats) for name in args.table}
    report(args, tables)


if __name__ == "__main__":
    sys.exit(main())
