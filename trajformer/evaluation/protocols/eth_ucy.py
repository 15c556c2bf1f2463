"""The ETH/UCY protocol: pedestrians, leave one scene out, best of 20, metres.

8 frames are observed and 12 predicted. A test window is scored if at least one pedestrian is
present in all its 20 frames, and these pedestrians are scored. The set of scored pedestrians
therefore depends on the future. A model must not see it: its input are `observed` windows, which
end with the 8 observed frames, and it predicts all pedestrians that are present in these frames.

`sample_folder` writes samples as the text files that AgentFormer's public `eval.py` scores, so that
metrics can be verified: `FOLDER/samples/<recording>/frame_<last observed frame>/sample_<k>.txt` has
a line per scored pedestrian and predicted frame: frame, pedestrian, x and y in metres of the
recording. `FOLDER/gt/<recording>/frame_<...>.txt` has the recorded positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from trajformer.data.batch import Observation, SceneBatch, Truth
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import run
from trajformer.evaluation.metrics.collection import Means
from trajformer.evaluation.metrics.crowd import crowd_metrics, crowd_names, recorded_collisions
from trajformer.evaluation.metrics.displacement import Metrics
from trajformer.evaluation.metrics.joint import PEDESTRIAN_COLLISION_M
from trajformer.evaluation.protocols.benchmark import check_finite
from trajformer.models.forecaster import Predictor
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import AgentRole, Scene

K = 20
NUM_HISTORY = 8
NUM_FUTURE = 12
COUNTS = {  # windows and scored trajectories of the test recordings, as in AgentFormer's files
    "eth": (253, 364),
    "hotel": (445, 1197),
    "univ": (947, 24334),
    "zara1": (705, 2356),
    "zara2": (998, 5910),
}
METRICS = crowd_names(K)
SceneMetrics = Mapping[str, Mapping[str, float]]  # by scene or "mean", and by name


@dataclass(frozen=True, eq=False)
class TestSet:
    """The test windows of one of the five scenes, in their order.

    An item is the observed part of a window.

    Attributes:
        name: of the scene, a key of `COUNTS`.
        root: folder of the recordings, for error messages.
        windows: 8 observed and 12 future frames each.
        frame_step: difference of consecutive annotated frame numbers, by recording (`city` of a
            window).
    """

    name: str
    root: Path
    windows: Sequence[Scene]
    frame_step: dict[str, int]
    __test__ = False  # not a test class of pytest

    @property
    def split(self) -> str:
        """Name of the split of the recordings."""
        return f"{self.name}_test"

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Scene:
        return observed(self.windows[index])

    def check(self) -> TestSet:
        """Check that they are the windows of the published results, and return itself.

        Raises TrajformerError: other lengths or counts.
        """
        where = f"{self.root}: {self.name}"
        lengths = (NUM_HISTORY, NUM_FUTURE, NUM_HISTORY + NUM_FUTURE)
        trajectories = 0
        for scene in self.windows:
            if (scene.num_history, scene.num_future, scene.num_steps) != lengths:
                cut = f"{scene.num_history} observed and {scene.num_future} future frames"
                problem = f"window {scene.scene_id} has {cut}, the protocol has 8 and 12"
                raise TrajformerError(f"{where}: {problem}")
            trajectories += int(scored(scene).sum())
        counts = (len(self.windows), trajectories)
        if counts != COUNTS[self.name]:
            actual, expected = _as_words(counts), _as_words(COUNTS[self.name])
            reason = "another version of the recordings, its metrics are not comparable"
            raise TrajformerError(f"{where}: {actual} to score, expected {expected}: {reason}")
        return self


def _as_words(counts: tuple[int, int]) -> str:
    windows, trajectories = counts
    return f"{windows} windows and {trajectories} trajectories"


def scored(scene: Scene) -> np.ndarray:
    """bool [A]: agents present in all frames."""
    return np.asarray(scene.valid.all(1))


def observed(scene: Scene) -> Scene:
    """The window without its future, the input of a model.

    Agents seen in all observed frames are SCORED, so that a model predicts them; all others are
    CONTEXT.
    """
    history = slice(scene.num_history)
    valid = scene.valid[:, history]
    role = np.where(valid.all(1), AgentRole.SCORED, AgentRole.CONTEXT)
    return replace(
        scene,
        agent_role=role.astype(np.uint8),
        position=scene.position[:, history],
        heading=scene.heading[:, history],
        velocity=scene.velocity[:, history],
        valid=valid,
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """Forecasts of some windows, at most 20 modes.

    The truth of `batch` is only valid for agents that are scored.
    """

    windows: Sequence[Scene]
    batch: SceneBatch
    forecast: Forecast


def outcomes(
    predictor: Predictor, test_set: TestSet, *, batch_size: int = 32, progress: bool = True
) -> Iterator[Outcome]:
    """Forecast all windows of a test set in order, at most 20 modes, with the recorded futures.

    Raises TrajformerError: the model predicts another number of steps, was trained on the test
    scene, or needs a focal agent.
    """
    _check_training_split(predictor, test_set)
    start = 0
    for batch, forecast in run(predictor, test_set, batch_size=batch_size, progress=progress):
        windows = test_set.windows[start : start + batch.num_scenes]
        start += batch.num_scenes
        if forecast.num_modes > K:
            order = forecast.logit.argsort(dim=-1, descending=True, stable=True)
            forecast = forecast.select(order[..., :K])
        truth = recorded(batch.observation, windows)
        yield Outcome(windows, SceneBatch(batch.observation, truth), forecast)


def _check_training_split(predictor: Predictor, test_set: TestSet) -> None:
    """Raise TrajformerError: the model was trained on the test scene.

    The training part of each scene consists of the recordings of the other four.
    """
    split = predictor.trained_on.split or ""
    name, _, part = split.rpartition("_")
    if part == "train" and name in COUNTS and name != test_set.name:
        reason = f"the model was trained on split '{split}', which contains {test_set.name}"
        expected = f"expected a model trained on {test_set.name}_train"
        raise TrajformerError(f"{test_set.root}: {test_set.name}: {reason}; {expected}")


def recorded(observation: Observation, windows: Sequence[Scene]) -> Truth:
    """Recorded futures of the targets of a batch, valid for the scored ones."""
    num_targets = observation.target_mask.sum(1).tolist()
    target = np.zeros((*observation.target_mask.shape, NUM_FUTURE, 2), np.float32)
    valid = np.zeros(target.shape[:-1], np.bool_)
    for b, scene in enumerate(windows):
        row = {agent: index for index, agent in enumerate(scene.agent_id)}
        agents = observation.agent_id[b][: num_targets[b]]
        rows = np.array([row[agent] for agent in agents], np.intp)
        targets = np.flatnonzero(scored(scene)[rows])
        target[b, targets] = scene.position[rows[targets], NUM_HISTORY:]
        valid[b, targets] = True
    truth = Truth(torch.from_numpy(target), torch.from_numpy(valid))
    return truth.to(observation.target_mask.device)


def _metrics(forecast: Forecast, batch: SceneBatch) -> Metrics:
    """`crowd_metrics` [B, S] of a batch, at 20 modes and 0.2 m."""
    truth = batch.truth
    return crowd_metrics(forecast, truth.position, truth.valid, K, PEDESTRIAN_COLLISION_M)


def score(scene: str, outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Counts of a scene, and means of `crowd_metrics` over agents.

    Raises TrajformerError: an agent was not predicted, or a metric is not finite.
    """
    means = Means(_metrics, "num_trajectories", METRICS)
    windows = 0
    for outcome in outcomes:
        valid = outcome.batch.truth.valid
        windows += int(valid[..., -1].any(-1).sum())
        means.to(valid.device).update(outcome.forecast, outcome.batch)
    metrics = {"num_windows": windows} | means.compute()
    trajectories = metrics["num_trajectories"]
    if (windows, trajectories) != COUNTS[scene]:
        counts = f"{trajectories} trajectories in {windows} windows"
        expected = COUNTS[scene][::-1]
        raise TrajformerError(f"{scene}: the model predicted {counts}, expected {expected}")
    check_finite(metrics, f"{scene}: ")
    return metrics


def recorded_collision_rate(test_set: TestSet) -> float:
    """Fraction of the scored pedestrians that come closer than 0.2 m to another recorded one."""
    hits = 0
    for scene in test_set.windows:
        future = scene.position[scored(scene), NUM_HISTORY:]
        hits += recorded_collisions(future, PEDESTRIAN_COLLISION_M).sum()
    _, trajectories = COUNTS[test_set.name]
    return float(hits) / trajectories


@contextmanager
def sample_folder(folder: Path, test_set: TestSet) -> Iterator[Callable[[Outcome], Outcome]]:
    """Yield a function that writes an outcome to a new folder, complete at the end, and returns it.

    Raises TrajformerError: the folder is not new.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TrajformerError(f"{folder}: exists already; samples are written to a new folder")
    with atomically(folder) as temporary:
        temporary.mkdir()
        yield partial(_write_samples, temporary, test_set)


def _write_samples(folder: Path, test_set: TestSet, outcome: Outcome) -> Outcome:
    observation = outcome.batch.observation
    position = outcome.forecast.in_city_frame(observation)
    for b, scene in enumerate(outcome.windows):
        targets = outcome.batch.truth.valid[b, :, -1].nonzero().squeeze(1).tolist()
        agents = [observation.agent_id[b][target] for target in targets]
        step = test_set.frame_step[scene.city]
        first = int(scene.scene_id.rsplit("-", 1)[1])
        now = first + step * (NUM_HISTORY - 1)
        frames = [now + step * future for future in range(1, NUM_FUTURE + 1)]
        name = f"{scene.city}/frame_{now:06d}"
        rows = [scene.agent_id.index(agent) for agent in agents]
        future = scene.position[rows, NUM_HISTORY:].astype(np.float64) + scene.origin
        _write_tracks(folder / f"gt/{name}.txt", agents, frames, future)
        for k, mode in enumerate(position[b, targets].swapaxes(0, 1)):
            _write_tracks(folder / f"samples/{name}/sample_{k:03d}.txt", agents, frames, mode)
    return outcome


def _write_tracks(
    path: Path, agents: Sequence[str], frames: Sequence[int], tracks: np.ndarray
) -> None:
    """Write tracks [n, F, 2] of agents, a line per position: frame, pedestrian, x and y."""
    lines = []
    for agent, track in zip(agents, tracks.tolist(), strict=True):
        pedestrian = int(float(agent))
        for frame, (x, y) in zip(frames, track, strict=True):
            lines.append(f"{frame} {pedestrian} {x:.4f} {y:.4f}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="ascii")
