"""The ETH/UCY protocol: pedestrians, leave one scene out, 8 observed frames, 12 future frames, best of 20, metres.

A test window is scored if at least one pedestrian is present in all its 20 frames, and these pedestrians are scored. The set of
scored pedestrians therefore depends on the future. A model must not see it: its input are `observed` windows, which end with the
8 observed frames, and it predicts all pedestrians that are present in these frames.

`SampleFolder` writes samples as the plain text files that AgentFormer's public `eval.py` scores, so that figures can be verified:
`FOLDER/samples/<recording>/frame_<last observed frame>/sample_<k>.txt` has a line per scored pedestrian and predicted frame:
frame, pedestrian, x and y in metres of the recording. `FOLDER/gt/<recording>/frame_<...>.txt` has the recorded positions.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
COUNTS = {  # windows and scored trajectories of the test recordings, as in AgentFormer's files
    "eth": (253, 364),
    "hotel": (445, 1197),
    "univ": (947, 24334),
    "zara1": (705, 2356),
    "zara2": (998, 5910),
}
_COLUMNS = (*COUNTS, "mean")
_WIDTH = 13  # of a column of the table, for "0.123/0.456"
Figures = Mapping[str, Mapping[str, float]]  # by scene or "mean", and by name


@dataclass(frozen=True, eq=False)
class TestSet:
    """The test windows of one of the five scenes, in their order.

    Attributes:
        name: name of the scene, a key of `COUNTS`.
        root: folder of the recordings, for error messages.
        windows: scenes of 8 observed and 12 future frames.
        frame_step: difference between consecutive annotated frame numbers, by recording (`city` of a window).
    """

    name: str
    root: Path
    windows: Sequence[Scene]
    frame_step: dict[str, int]
    __test__ = False  # not a test class of pytest

    def check(self) -> TestSet:
        """Check that these are the test windows of the published figures; returns itself.

        Raises:
            TrajformerError: the windows have another length, or their number differs (another version of the recordings).
        """
        for scene in self.windows:
            if (scene.num_history, scene.num_future, scene.num_steps) != (NUM_HISTORY, NUM_FUTURE, NUM_HISTORY + NUM_FUTURE):
                cut = f"{scene.num_history} observed and {scene.num_future} future frames"
                raise TrajformerError(f"{self.root}: {self.name}: window {scene.scene_id} has {cut}, the protocol has 8 and 12")
        counts = len(self.windows), sum(int(_scored(scene).sum()) for scene in self.windows)
        if counts != COUNTS[self.name]:
            actual, expected = ("{} windows and {} trajectories".format(*pair) for pair in (counts, COUNTS[self.name]))
            reason = "another version of the recordings, its figures are not comparable"
            raise TrajformerError(f"{self.root}: {self.name}: {actual} to score, expected {expected}: {reason}")
        return self


def _scored(scene: Scene) -> np.ndarray:
    """bool [A]: agents present in all frames."""
    return np.asarray(scene.valid.all(1))


def observed(scene: Scene) -> Scene:
    """The window without its future, the input of a model.

    Agents seen in all observed frames are SCORED, so that a model predicts them; all others are CONTEXT.
    """
    seen = scene.valid[:, : scene.num_history]
    steps = {name: getattr(scene, name)[:, : scene.num_history] for name in ("position", "heading", "velocity")}
    role = np.where(seen.all(1), AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)
    return replace(scene, agent_role=role, valid=seen, **steps)


@dataclass(frozen=True, eq=False)
class _Observed:
    """The observed windows of a test set, as scenes for `run`."""

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
    """Forecasts of some windows (at most 20 modes) and the recorded futures, in the frame of the scenes."""

    windows: Sequence[Scene]
    observation: Observation
    forecast: Forecast
    truth: Truth  # valid is all False for agents that are not scored


def outcomes(predictor: Predictor, test_set: TestSet, *, batch_size: int = 32, progress: bool = True) -> Iterator[Outcome]:
    """Forecast all windows of a test set in order; yields forecasts with the recorded futures.

    Raises:
        TrajformerError: the model predicts another number of steps, was trained on the test scene, or needs a focal agent.
    """
    _check_training(predictor, test_set)
    start = 0
    for batch, forecast in run(predictor, _Observed(test_set), batch_size=batch_size, progress=progress):
        windows = test_set.windows[start : start + batch.num_scenes]
        start += batch.num_scenes
        truth = recorded(batch.observation, windows)
        yield Outcome(windows, batch.observation, most_probable(forecast, K), truth)


def _check_training(predictor: Predictor, test_set: TestSet) -> None:
    name, _, part = predictor.trained_on.rpartition("_")
    if part == "train" and name in COUNTS and name != test_set.name:
        reason = f"the model was trained on split '{predictor.trained_on}', which contains {test_set.name}"
        raise TrajformerError(f"{test_set.root}: {test_set.name}: {reason}; expected a model trained on {test_set.name}_train")


def recorded(observation: Observation, windows: Sequence[Scene]) -> Truth:
    """Recorded futures of the targets of a batch, valid for the scored ones."""
    target = np.zeros((*observation.target_mask.shape, NUM_FUTURE, 2), np.float32)
    valid = np.zeros(target.shape[:-1], np.bool_)
    for b, scene in enumerate(windows):
        row = {agent: index for index, agent in enumerate(scene.agent_id)}
        rows = np.array([row[agent] for agent in observation.agent_id[b][: int(observation.target_mask[b].sum())]], np.intp)
        kept = rows[_scored(scene)[rows]]
        targets = np.flatnonzero(_scored(scene)[rows])
        target[b, targets], valid[b, targets] = scene.position[kept, NUM_HISTORY:], True
    return Truth(torch.from_numpy(target), torch.from_numpy(valid)).to(observation.target_mask.device)


def most_probable(forecast: Forecast, k: int) -> Forecast:
    """The k most probable modes of each agent, or (joint) of each scene; the same forecast if it has at most k modes."""
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
    """Accumulates the outcomes of one model on one scene."""

    def __init__(self, name: str) -> None:
        self.name, self._metrics = name, CrowdMetrics(K)

    def add(self, outcome: Outcome) -> None:
        """Add a batch."""
        self._metrics.to(outcome.truth.position.device).update(outcome.forecast, outcome.truth)

    def figures(self) -> dict[str, float]:
        """See `CrowdMetrics`.

        Raises:
            TrajformerError: a scored pedestrian was not predicted, or a figure is NaN or infinite.
        """
        figures = self._metrics.compute()
        if (figures["num_windows"], figures["num_trajectories"]) != COUNTS[self.name]:
            counts = "{num_trajectories} trajectories in {num_windows} windows".format(**figures)
            raise TrajformerError(f"{self.name}: the model predicted {counts}, expected {COUNTS[self.name][::-1]}")
        if bad := [name for name, value in figures.items() if not np.isfinite(value)]:
            raise TrajformerError(f"{self.name}: {bad[0]} of the model is not a number")
        return figures


def recorded_collision_rate(test_set: TestSet) -> float:
    """Share of the scored pedestrians that come closer than 0.2 m to another one in the recording."""
    hits = 0.0
    for scene in test_set.windows:
        future = torch.from_numpy(scene.position[_scored(scene), NUM_HISTORY:])[None, :, None]
        actors = torch.ones(future.shape[:2], dtype=torch.bool)
        hits += collided(future, actors, PEDESTRIAN_COLLISION_M, between_steps=True).sum().item()
    return hits / COUNTS[test_set.name][1]


def mean_of_scenes(scenes: dict[str, dict[str, float]]) -> dict[str, float]:
    """The mean of every figure over the five scenes, and the sum of the counts; empty if a scene is missing."""
    if scenes.keys() != COUNTS.keys():
        return {}
    rows = list(scenes.values())
    total = {name: sum(row[name] for row in rows) for name in rows[0]}
    return {name: value if name.startswith("num_") else value / len(rows) for name, value in total.items()}


class SampleFolder:
    """Writes the outcomes of a test set to a new folder: `with SampleFolder(...) as samples`. It is renamed when it is complete.

    Raises:
        TrajformerError: the folder exists and is not empty.
    """

    def __init__(self, folder: Path, test_set: TestSet) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise TrajformerError(f"{folder}: exists already; samples are written to a new folder")
        self.folder, self.test_set = folder, test_set
        self._temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")

    def __enter__(self) -> SampleFolder:
        self._temporary.mkdir(parents=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            os.replace(self._temporary, self.folder)
        else:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def add(self, outcome: Outcome) -> None:
        """Write the windows of a batch."""
        position = outcome.forecast.in_city_frame(outcome.observation)
        for b, scene in enumerate(outcome.windows):
            targets = outcome.truth.valid[b, :, -1].nonzero().squeeze(1).tolist()
            agents = [outcome.observation.agent_id[b][target] for target in targets]
            step, first = self.test_set.frame_step[scene.city], int(scene.scene_id.rsplit("-", 1)[1])
            frames = [first + step * (NUM_HISTORY + future) for future in range(NUM_FUTURE)]
            name = f"{scene.city}/frame_{frames[0] - step:06d}"
            for k in range(outcome.forecast.num_modes):
                self._write(f"samples/{name}/sample_{k:03d}.txt", agents, frames, position[b, targets, k])
            rows = [scene.agent_id.index(agent) for agent in agents]
            future = scene.position[rows, NUM_HISTORY:].astype(np.float64) + scene.origin
            self._write(f"gt/{name}.txt", agents, frames, future)

    def _write(self, name: str, agents: Iterable[str], frames: list[int], position: np.ndarray) -> None:
        file = self._temporary / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"{frame} {int(float(agent))} {x:.4f} {y:.4f}"
            for agent, path in zip(agents, position.tolist(), strict=True)
            for frame, (x, y) in zip(frames, path, strict=True)
        ]
        file.write_text("\n".join(lines) + "\n", encoding="ascii")


@dataclass(frozen=True)
class Published:
    """A published row: ADE and FDE of the five scenes (empty if only the mean was given), their mean, and the source."""

    name: str
    scenes: tuple[tuple[float, float], ...]
    mean: tuple[float, float]
    source: str


BEST_OF_20 = (
    Published(
        "Social-GAN", ((0.87, 1.62), (0.67, 1.37), (0.76, 1.52), (0.35, 0.68), (0.42, 0.84)), (0.61, 1.21), "Gupta et al. 2018"
    ),
    Published(
        "Trajectron++ (leak fixed)",
        ((0.67, 1.18), (0.18, 0.28), (0.30, 0.54), (0.25, 0.41), (0.18, 0.32)),
        (0.32, 0.55),
        "Salzmann et al. 2020, corrected in their repository",
    ),
    Published(
        "AgentFormer (fixed)",
        ((0.45, 0.75), (0.14, 0.22), (0.25, 0.45), (0.18, 0.30), (0.14, 0.24)),
        (0.23, 0.39),
        "Yuan et al. 2021, corrected in their repository",
    ),
    Published("MemoNet", ((0.40, 0.61), (0.11, 0.17), (0.24, 0.43), (0.18, 0.32), (0.14, 0.24)), (0.21, 0.35), "Xu et al. 2022"),
    Published("EqMotion", ((0.40, 0.61), (0.12, 0.18), (0.23, 0.43), (0.18, 0.32), (0.13, 0.23)), (0.21, 0.35), "Xu et al. 2023"),
    Published(
        "SocialVAE",
        ((0.41, 0.58), (0.13, 0.19), (0.21, 0.36), (0.17, 0.29), (0.13, 0.22)),
        (0.21, 0.33),
        "Xu, Hayet and Karamouzas 2022",
    ),
    Published(
        "SingularTrajectory",
        ((0.35, 0.42), (0.13, 0.19), (0.25, 0.44), (0.19, 0.32), (0.15, 0.25)),
        (0.21, 0.32),
        "Bae et al. 2024",
    ),
    Published("MoFlow", ((0.40, 0.57), (0.11, 0.17), (0.23, 0.39), (0.15, 0.26), (0.12, 0.22)), (0.20, 0.32), "Fu et al. 2025"),
    Published("PPT", ((0.36, 0.51), (0.11, 0.15), (0.22, 0.40), (0.17, 0.30), (0.12, 0.21)), (0.20, 0.31), "Lin et al. 2024"),
)
MOST_PROBABLE = (
    Published("Trajectron++", (), (0.52, 1.11), "Salzmann et al. 2020"),
    Published("SingularTrajectory", (), (0.47, 0.90), "Bae et al. 2024"),
)


def table(models: Mapping[str, Figures], recorded: Mapping[str, float]) -> str:
    """The tables of published figures with rows of the given models, as text.

    Args:
        models: figures by label of the model and by scene, with "mean" if all five scenes are present.
        recorded: collision rate of the recordings by scene, and "mean".
    """
    width = max(len(name) for name in [*models, *(row.name for row in BEST_OF_20)])
    lines = ["ETH/UCY, leave one scene out: 8 frames observed, 12 to predict (0.4 s each), all test windows, metres"]

    def section(title: str, published: Sequence[Published], names: tuple[str, str]) -> None:
        lines.extend(["", title, " " * width + "".join(f"{name:>{_WIDTH}}" for name in _COLUMNS)])
        lines.extend(_line(row.name, width, _published(row)) + f"  {row.source}" for row in published)
        lines.extend(_line(label, width, [_pair(figures.get(c), names) for c in _COLUMNS]) for label, figures in models.items())

    section(f"best of {K}, minima taken separately: ADE/FDE", BEST_OF_20, (f"ADE_{K}", f"FDE_{K}"))
    section("most probable mode: ADE/FDE", MOST_PROBABLE, ("ADE_1", "FDE_1"))
    section(f"the mode of {K} with the best ADE: ADE/FDE", (), (f"ADE_{K}", f"FDE_at_best_ADE_{K}"))
    section(f"best of {K} worlds, minima taken separately: JADE/JFDE", (), (f"JADE_{K}", f"JFDE_{K}"))
    title = f"pedestrians who collide (under 0.2 m from another one's centre), mean over {K} worlds, percent"
    lines += ["", title, " " * width + "".join(f"{name:>{_WIDTH}}" for name in _COLUMNS)]
    rates = {label: {s: f[f"collision_rate_{K}"] for s, f in figures.items() if f} for label, figures in models.items()}
    for label, rate in ({"recorded": recorded} | rates).items():
        lines.append(_line(label, width, [f"{100 * rate[c]:.2f}" if c in rate else "-" for c in _COLUMNS]))
    return "\n".join(lines)


def _line(label: str, width: int, cells: Sequence[str]) -> str:
    return f"{label:<{width}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def _pair(figures: Mapping[str, float] | None, names: tuple[str, str]) -> str:
    return "/".join(f"{figures[name]:.3f}" for name in names) if figures else "-"


def _published(row: Published) -> list[str]:
    scenes = row.scenes or (None,) * len(COUNTS)
    return ["-" if pair is None else f"{pair[0]:.2f}/{pair[1]:.2f}" for pair in (*scenes, row.mean)]
