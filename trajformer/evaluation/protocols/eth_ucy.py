"""The ETH/UCY protocol: pedestrians, leave one scene out, 8 observed frames, 12 to predict, best of 20, metres.

A test window counts if at least one pedestrian is there in all its 20 frames, and these pedestrians are scored. To be
scored is therefore to be there in the future. A model must not know who will be, so it is shown `observed` windows:
they end with the 8 observed frames, and everybody who is there in all of these is to be predicted alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from trajformer.data.batch import Observation, Truth
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import run
from trajformer.evaluation.metrics.averages import CrowdMetrics
from trajformer.evaluation.metrics.joint import PEDESTRIAN_COLLISION_M, collided
from trajformer.models.forecaster import Predictor
from trajformer.scenes.scene import AgentRole, Scene

K, NUM_HISTORY, NUM_FUTURE = 20, 8, 12
COUNTS = {  # windows and trajectories of the test recordings that AgentFormer's files hold
    "eth": (253, 364),
    "hotel": (445, 1197),
    "univ": (947, 24334),
    "zara1": (705, 2356),
    "zara2": (998, 5910),
}


@dataclass(frozen=True, eq=False)
class TestSet:
    """The test windows of one of the five scenes, in their order.

    Attributes:
        name: of the scene, a key of `COUNTS`.
        root: the folder that the recordings are in, for messages.
        windows: with their futures.
        frame_step: by recording (a window's `city`), from one annotated frame number to the next.
    """

    name: str
    root: Path
    windows: Sequence[Scene]
    frame_step: dict[str, int]
    __test__ = False  # no test class of pytest's

    def check(self) -> TestSet:
        """The same, if it is what the published figures are of.

        Raises:
            TrajformerError: windows are cut differently, or another version of the recordings gives another number of them.
        """
        for scene in self.windows:
            if (scene.num_history, scene.num_future, scene.num_steps) != (NUM_HISTORY, NUM_FUTURE, NUM_HISTORY + NUM_FUTURE):
                cut = f"{scene.num_history} observed and {scene.num_future} future frames"
                raise TrajformerError(f"{self.root}: {self.name}: window {scene.scene_id} has {cut}, the protocol has 8 and 12")
        found = len(self.windows), sum(int(_scored(scene).sum()) for scene in self.windows)
        if found != COUNTS[self.name]:
            counts = "{} windows and {} trajectories".format(*found)
            wanted = "{} and {}".format(*COUNTS[self.name])
            why = "another version of the recordings, whose figures cannot be compared"
            raise TrajformerError(f"{self.root}: {self.name}: {counts} to score, the protocol has {wanted}: {why}")
        return self


def _scored(scene: Scene) -> np.ndarray:
    """bool [A]: there in all frames."""
    return np.asarray(scene.valid.all(1))


def observed(scene: Scene) -> Scene:
    """The window as a model may see it: without the future, and the same whoever stays in it.

    Agents seen in all observed frames are SCORED, which is who a model predicts; all others are CONTEXT.
    """
    seen = scene.valid[:, : scene.num_history]
    steps = {name: getattr(scene, name)[:, : scene.num_history] for name in ("position", "heading", "velocity")}
    role = np.where(seen.all(1), AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)
    return replace(scene, agent_role=role, valid=seen, **steps)


@dataclass(frozen=True, eq=False)
class _Observed:
    """A test set's windows as `run` takes scenes."""

    test_set: TestSet

    @property
    def split(self) -> str:
        return f"{self.test_set.name}_test"

    @property
    def root(self) -> Path:
        return self.test_set.root

    def __len__(self) -> int:
        return len(self.test_set.windows)

    def __getitem__(self, index: int) -> Scene:
        return observed(self.test_set.windows[index])


@dataclass(frozen=True, eq=False)
class Outcome:
    """What was predicted for some windows, and what happened: at most 20 modes, in the frame of the scenes."""

    windows: Sequence[Scene]
    observation: Observation
    forecast: Forecast
    truth: Truth  # valid is all False for agents that are not scored


def outcomes(predictor: Predictor, test_set: TestSet, *, batch_size: int = 32, progress: bool = True) -> Iterator[Outcome]:
    """Predict every window of a test set, in order, as the model may see it, and put the truth beside it.

    Raises:
        TrajformerError: the model predicts another number of steps, was trained with the scene it is to be tested on, or
            needs a focal agent.
    """
    _check_training(predictor, test_set)
    begin = 0
    for batch, forecast in run(predictor, _Observed(test_set), batch_size=batch_size, progress=progress):
        windows = test_set.windows[begin : begin + batch.num_scenes]
        begin += batch.num_scenes
        truth = recorded(batch.observation, windows)
        yield Outcome(windows, batch.observation, most_probable(forecast, K), truth)


def _check_training(predictor: Predictor, test_set: TestSet) -> None:
    name, _, part = predictor.trained_on.rpartition("_")
    if part == "train" and name in COUNTS and name != test_set.name:
        reason = f"a model trained on split '{predictor.trained_on}' has seen {test_set.name}"
        raise TrajformerError(
            f"{test_set.root}: {test_set.name}: {reason}: leave-one-out needs one trained on {test_set.name}_train"
        )


def recorded(observation: Observation, windows: Sequence[Scene]) -> Truth:
    """Recorded futures of the targets of a batch, valid for the scored ones."""
    target = np.zeros((*observation.target_mask.shape, NUM_FUTURE, 2), np.float32)
    valid = np.zeros(target.shape[:-1], np.bool_)
    for b, scene in enumerate(windows):
        row = {agent: index for index, agent in enumerate(scene.agent_id)}
        rows = np.array([row[agent] for agent in observation.agent_id[b][: int(observation.target_mask[b].sum())]], np.intp)
        kept = rows[_scored(scene)[rows]]
        places = np.flatnonzero(_scored(scene)[rows])
        target[b, places], valid[b, places] = scene.position[kept, NUM_HISTORY:], True
    return Truth(torch.from_numpy(target), torch.from_numpy(valid)).to(observation.target_mask.device)


def most_probable(forecast: Forecast, k: int) -> Forecast:
    """The k most probable modes, for each agent or (joint) of all; the forecast itself where it has no more than k."""
    if forecast.num_modes <= k:
        return forecast
    order = forecast.logit.argsort(dim=-1, descending=True, stable=True)[..., :k]
    if not forecast.is_joint:
        return forecast.select(order)
    wide = order[:, None, :, None, None].expand(-1, forecast.position.shape[1], -1, *forecast.position.shape[3:])
    scale = None if forecast.scale is None else forecast.scale.gather(2, wide)
    position, logit = forecast.position.gather(2, wide), forecast.logit.gather(1, order)
    return replace(forecast, position=position, logit=logit, scale=scale, auxiliary=())


class Score:
    """Accumulates outcomes of one model on one scene."""

    def __init__(self, name: str) -> None:
        self.name, self._metrics = name, CrowdMetrics(K)

    def add(self, outcome: Outcome) -> None:
        """Add a batch."""
        self._metrics.to(outcome.truth.position.device).update(outcome.forecast, outcome.truth)

    def figures(self) -> dict[str, float]:
        """See `CrowdMetrics`.

        Raises:
            TrajformerError: a scored pedestrian was not predicted, or a figure is not a number.
        """
        figures = self._metrics.compute()
        if (figures["num_windows"], figures["num_trajectories"]) != COUNTS[self.name]:
            counts = "{num_trajectories} trajectories in {num_windows} windows".format(**figures)
            raise TrajformerError(f"{self.name}: the model predicted {counts}, the protocol has {COUNTS[self.name][::-1]}")
        if bad := [name for name, value in figures.items() if not np.isfinite(value)]:
            raise TrajformerError(f"{self.name}: the model's {bad[0]} is not a number")
        return figures


def recorded_collision_rate(test_set: TestSet) -> float:
    """Share of the scored pedestrians who come closer than 0.2 m to another one in what was recorded."""
    hits = 0.0
    for scene in test_set.windows:
        future = torch.from_numpy(scene.position[_scored(scene), NUM_HISTORY:])[None, :, None]
        everybody = torch.ones(future.shape[:2], dtype=torch.bool)
        hits += collided(future, everybody, PEDESTRIAN_COLLISION_M, between_steps=True).sum().item()
    return hits / COUNTS[test_set.name][1]


def mean_of_scenes(scenes: dict[str, dict[str, float]]) -> dict[str, float]:
    """The plain mean over the five scenes of every figure, the sum of the counts; empty where a scene is missing."""
    if scenes.keys() != COUNTS.keys():
        return {}
    rows = list(scenes.values())
    total = {name: sum(row[name] for row in rows) for name in rows[0]}
    return {name: value if name.startswith("num_") else value / len(rows) for name, value in total.items()}
