"""Latency of SE2Former with a fresh and with a kept map, its growth with the size of a scene, and the cost of a training.

    python tools/bench_forecast.py --store STORE [--scene ID] [--repeats N] [--threads 1] [--json FILE]

STORE holds Argoverse 2 scenarios (`trajformer preprocess argoverse2`), and ID is the beginning of a scene id. Weights are random:
they do not change the time. The peer in the same run is mmTransformer. Larger scenes consist of copies of the agents and lanes of
this scene at random places, with its density: one agent in 1,250 square metres, and five pieces of lanes for each agent. "linear"
is the time for an agent relative to that in the scene with 64 agents. A training step of the recipe for Argoverse 2
has the scenes of the split, repeated; "epoch, h" is the time for the training part of the full data set.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
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
    training_step,
)
from torch import Tensor

from trajformer.data.augment import augment
from trajformer.data.batch import Observation
from trajformer.data.loading import SceneDataset
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
    "data.batch.max_agents": 64,
    "data.batch.agent_radius_m": 80.0,
    "data.batch.map_radius_m": 80.0,
    "data.batch.polyline_points": 8,
    "data.batch.polyline_length_m": 20.0,
}
SIZES = ((64, 320), (128, 640), (256, 1280), (512, 2560), (256, 2000))  # agents and pieces of lanes
AREA_M2 = 1250.0  # of an agent
FULL_SCENES = 199_908  # of the training part of Argoverse 2


def load(
    recipe: str, store: SceneStore, index: int, targets: str
) -> tuple[Forecaster, Observation]:
    """A model with random weights and its input for one scene."""
    config = read_recipe(recipe, PEER_CHANGES if recipe == PEER else {})
    torch.manual_seed(0)
    scenes = SceneDataset(store, replace(config.data.batch, targets=targets))
    return config.build_model().eval(), scenes[[index]].observation


def enlarged(o: Observation, agents: int, lanes: int) -> Observation:
    """Copies of the agents and lanes of a scene at random places of a square; all agents are targets."""

    def copies(values: Tensor, count: int) -> Tensor:
        return values[:, torch.arange(count) % values.shape[1]]

    side, random = (agents * AREA_M2) ** 0.5, torch.Generator().manual_seed(agents)
    counts = {o.agent_mask.shape[1]: agents, o.polyline_mask.shape[1]: lanes}
    tensors = {
        name: value
        for name, value in vars(o).items()
        if isinstance(value, Tensor) and value.ndim >= 2
    }
    copied = {
        name: copies(value, counts.get(value.shape[1], agents)) for name, value in tensors.items()
    }
    o = replace(o, **copied)
    place, road = (side * torch.rand(1, count, 2, generator=random) for count in (agents, lanes))
    shift = place - o.pose[..., :2]
    pose = torch.cat([place, o.pose[..., 2:]], -1)
    polyline = o.polyline + (road - o.polyline[:, :, 0])[:, :, None]
    return replace(o, position=o.position + shift[:, :, None], pose=pose, polyline=polyline)


@torch.inference_mode()
def one_scene(store: SceneStore, index: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Rows of the two models for the same scene."""
    runs: dict[str, Callable[[], object]] = {}
    sizes: dict[str, tuple[int, int, int]] = {}
    for label, recipe, targets in (
        ("SE2Former, all agents", "se2former_argoverse2", "all"),
        ("SE2Former, focal agent", "se2former_argoverse2", "focal"),
        ("mmTransformer, all agents", PEER, "all"),
        ("mmTransformer, focal agent", PEER, "focal"),
    ):
        model, o = load(recipe, store, index, targets)
        sizes[label] = o.num_targets, o.agent_mask.shape[1], o.polyline_mask.shape[1]
        runs[label] = lambda model=model, o=o: model(o)  # type: ignore[misc]
        if isinstance(model, SE2Former):
            kept = f"{label}, kept map"
            lanes, sizes[kept] = model.encode_map(o), sizes[label]
            runs[kept] = lambda model=model, o=o, lanes=lanes: model.forecast(
                o, lanes, model.encode_agents(o, lanes)
            )  # type: ignore[misc]
    for label, time in medians_ms(runs, repeats).items():
        yield {
            "model": label,
            **dict(zip(("targets", "agents", "lanes"), sizes[label], strict=True)),
            "ms": time,
        }


@torch.inference_mode()
def larger_scenes(store: SceneStore, index: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Rows of SE2Former for growing scenes."""
    model, o = load("se2former_argoverse2", store, index, "all")
    runs = {}
    for agents, lanes in SIZES:
        scene = enlarged(o, agents, lanes)
        runs[f"{agents} agents, {lanes} lanes"] = lambda scene=scene: model(scene)  # type: ignore[misc]
    times = medians_ms(
        runs, repeats
    ).values()  # alternating, so that all sizes see the same machine
    first = next(iter(times)) / SIZES[0][0]
    for (agents, lanes), time in zip(SIZES, times, strict=True):
        yield {"agents": agents, "lanes": lanes, "ms": time, "linear": time / agents / first}


def training(store: SceneStore, index: int, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for a training step, augmentation and optimiser included; `index` is not used."""
    recipe, scenes = read_recipe("se2former_argoverse2"), len(store)
    torch.manual_seed(0)
    model, loss = recipe.build_model().train(), SE2Former.losses[0]().build()
    size = recipe.data.batch_size
    batch = SceneDataset(store, recipe.data.train_batch)[[i % scenes for i in range(size)]]
    random = torch.Generator().manual_seed(0)
    step = training_step(
        lambda: loss(model, augment(batch, recipe.augment, random))["loss"],
        model,
        loss,
        recipe.optim,
    )
    start = reset_peak("cpu")
    time = median_ms(step, repeats)
    hours = FULL_SCENES / size * time / 3.6e6
    yield {
        "scenes": size,
        "step, ms": time,
        "scenes/s": 1e3 * size / time,
        "epoch, h": hours,
        "MB": peak_mb("cpu") - start,
    }


def main() -> None:
    """Measure and print the tables."""
    parser = new_parser(__doc__, repeats=15)
    parser.add_argument("--store", required=True)
    parser.add_argument("--split", default="train")
    parser.add_argument("--scene", default=SCENE)
    args = parse(parser)
    store = SceneStore(args.store, args.split)
    found = [index for index, name in enumerate(store.scene_ids()) if name.startswith(args.scene)]
    if not found:
        raise SystemExit(f"{args.store}: no scene {args.scene} in split {args.split}")
    tables = {"One scene": one_scene, "Larger scenes": larger_scenes, "Training": training}
    report(args, {title: rows(store, found[0], args.repeats) for title, rows in tables.items()})


if __name__ == "__main__":
    main()
