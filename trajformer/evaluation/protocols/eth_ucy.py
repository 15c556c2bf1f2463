"""The ETH/UCY protocol: pedestrians, leave one scene out, 8 observed frames, 12 future frames, best of 20, metres.

A test window is scored if at least one pedestrian is present in all its 20 frames, and these pedestrians are scored. The set of
scored pedestrians therefore depends on the future. A model must not see it: its input are `observed` windows, which end with the
8 observed frames, and it predicts all pedestrians that are present in these frames.

`sample_folder` writes samples as the text files that AgentFormer's public `eval.py` scores, so that figures can be verified:
`FOLDER/samples/<recording>/frame_<last observed frame>/sample_<k>.txt` has a line per scored pedestrian and predicted frame:
frame, pedestrian, x and y in metres of the recording. `FOLDER/gt/<recording>/frame_<...>.txt` has the recorded positions.
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
from trajformer.evaluation.metrics.displacement import Metrics, agent_errors, separate_minima
from trajformer.evaluation.metrics.joint import PEDESTRIAN_COLLISION_M, collisions, world_errors
from trajformer.evaluation.protocols.benchmark import Row, as_text
from trajformer.models.forecaster import Predictor
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import AgentRole, Scene

K, NUM_HISTORY, NUM_FUTURE = 20, 8, 12
COUNTS = {  # windows and scored trajectories of the test recordings, as in AgentFormer's files
    "eth": (253, 364),
    "hotel": (445, 1197),
    "univ": (947, 24334),
    "zara1": (705, 2356),
    "zara2": (998, 5910),
}
_BEST_OF_K = (
    "ADE",
    "FDE",
    "FDE_at_best_ADE",
    "JADE",
    "JFDE",
    "JFDE_at_best_JADE",
    "collision_rate",
)
FIGURES = ("ADE_1", "FDE_1", *(f"{name}_{K}" for name in _BEST_OF_K))
_COLUMNS = (*COUNTS, "mean")
SceneMetrics = Mapping[str, Mapping[str, float]]  # by scene or "mean", and by name


@dataclass(frozen=True, eq=False)
class TestSet:
    """The test windows of one of the five scenes, in their order; an item is the observed part of a window."""

    name: str  # of the scene, a key of `COUNTS`
    root: Path  # folder of the recordings, for error messages
    windows: Sequence[Scene]  # 8 observed and 12 future frames
    frame_step: dict[
        str, int
    ]  # difference of consecutive annotated frame numbers, by recording (`city` of a window)
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
        """Check that they are the windows of the published figures (TrajformerError: other lengths or counts), return itself."""
        for scene in self.windows:
            if (scene.num_history, scene.num_future, scene.num_steps) != (
                NUM_HISTORY,
                NUM_FUTURE,
                NUM_HISTORY + NUM_FUTURE,
            ):
                cut = f"{scene.num_history} observed and {scene.num_future} future frames"
                raise TrajformerError(
                    f"{self.root}: {self.name}: window {scene.scene_id} has {cut}, the protocol has 8 and 12"
                )
        counts = len(self.windows), sum(int(scored(scene).sum()) for scene in self.windows)
        if counts != COUNTS[self.name]:
            actual, expected = (
                "{} windows and {} trajectories".format(*pair)
                for pair in (counts, COUNTS[self.name])
            )
            reason = "another version of the recordings, its figures are not comparable"
            raise TrajformerError(
                f"{self.root}: {self.name}: {actual} to score, expected {expected}: {reason}"
            )
        return self


def scored(scene: Scene) -> np.ndarray:
    """bool [A]: agents present in all frames."""
    return np.asarray(scene.valid.all(1))


def observed(scene: Scene) -> Scene:
    """The window without its future, the input of a model.

    Agents seen in all observed frames are SCORED, so that a model predicts them; all others are CONTEXT.
    """
    steps = {
        name: getattr(scene, name)[:, : scene.num_history]
        for name in ("position", "heading", "velocity", "valid")
    }
    role = np.where(steps["valid"].all(1), AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)
    return replace(scene, agent_role=role, **steps)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Forecasts of some windows, at most 20 modes. The truth of `batch` is only valid for agents that are scored."""

    windows: Sequence[Scene]
    batch: SceneBatch
    forecast: Forecast


def outcomes(
    predictor: Predictor, test_set: TestSet, *, batch_size: int = 32, progress: bool = True
) -> Iterator[Outcome]:
    """Forecast all windows of a test set in order; yields the most probable modes with the recorded futures.

    Raises TrajformerError: the model predicts another number of steps, was trained on the test scene, or needs a focal agent.
    """
    split = predictor.trained_on.split or ""
    name, _, part = split.rpartition("_")
    if part == "train" and name in COUNTS and name != test_set.name:
        reason = f"the model was trained on split '{split}', which contains {test_set.name}"
        raise TrajformerError(
            f"{test_set.root}: {test_set.name}: {reason}; expected a model trained on {test_set.name}_train"
        )
    start = 0
    for batch, forecast in run(predictor, test_set, batch_size=batch_size, progress=progress):
        windows = test_set.windows[start : start + batch.num_scenes]
        start += batch.num_scenes
        if forecast.num_modes > K:
            forecast = forecast.select(
                forecast.logit.argsort(dim=-1, descending=True, stable=True)[..., :K]
            )
        yield Outcome(
            windows, SceneBatch(batch.observation, recorded(batch.observation, windows)), forecast
        )


def recorded(observation: Observation, windows: Sequence[Scene]) -> Truth:
    """Recorded futures of the targets of a batch, valid for the scored ones."""
    target = np.zeros((*observation.target_mask.shape, NUM_FUTURE, 2), np.float32)
    valid = np.zeros(target.shape[:-1], np.bool_)
    for b, scene in enumerate(windows):
        row = {agent: index for index, agent in enumerate(scene.agent_id)}
        rows = np.array(
            [
                row[agent]
                for agent in observation.agent_id[b][: int(observation.target_mask[b].sum())]
            ],
            np.intp,
        )
        targets = np.flatnonzero(scored(scene)[rows])
        target[b, targets], valid[b, targets] = scene.position[rows[targets], NUM_HISTORY:], True
    return Truth(torch.from_numpy(target), torch.from_numpy(valid)).to(
        observation.target_mask.device
    )


def crowd_metrics(forecast: Forecast, batch: SceneBatch) -> Metrics:
    """The figures of papers on pedestrians [B, S].

    ADE_k and FDE_k are separate minima, at k = 1 (the most probable mode) and at K = 20; names have K even if a model has fewer
    modes. For JADE_K and JFDE_K of worlds, every agent has the value of its scene, so that scenes are weighted by their number of
    actors. collision_rate_K is the share of worlds in which the agent comes closer than 0.2 m to another one.
    """
    position, valid = batch.truth.position, batch.truth.valid
    agents, worlds = (errors(forecast, position, valid) for errors in (agent_errors, world_errors))
    metrics = {
        f"{name}_{k}": value
        for k in (1, K)
        for name, value in separate_minima(agents.most_probable(k)).items()
    }
    for name, value in separate_minima(worlds.most_probable(K)).items():
        metrics[f"{name.replace('ADE', 'JADE').replace('FDE', 'JFDE')}_{K}"] = value[
            :, None
        ].expand(valid.shape[:2])
    hit = collisions(
        forecast.in_batch_frame(), valid[..., -1], PEDESTRIAN_COLLISION_M, between_steps=True
    )
    return metrics | {f"collision_rate_{K}": hit.double().mean(-1)}, valid[..., -1]


def score(scene: str, outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Counts of a scene, and means of `crowd_figures` over agents (TrajformerError: one was not predicted, or is not finite)."""
    windows, means = 0, Means(crowd_metrics, "num_trajectories", FIGURES)
    for outcome in outcomes:
        valid = outcome.batch.truth.valid
        windows += int(valid[..., -1].any(-1).sum())
        means.to(valid.device).update(outcome.forecast, outcome.batch)
    metrics = {"num_windows": windows} | means.compute()
    if (metrics["num_windows"], metrics["num_trajectories"]) != COUNTS[scene]:
        counts = "{num_trajectories} trajectories in {num_windows} windows".format(**metrics)
        raise TrajformerError(
            f"{scene}: the model predicted {counts}, expected {COUNTS[scene][::-1]}"
        )
    if bad := [name for name, value in metrics.items() if not np.isfinite(value)]:
        raise TrajformerError(f"{scene}: {bad[0]} of the model is not a number")
    return metrics


def recorded_collision_rate(test_set: TestSet) -> float:
    """Share of the scored pedestrians that come closer than 0.2 m to another one in the recording."""
    hits = 0.0
    for scene in test_set.windows:
        future = torch.from_numpy(scene.position[scored(scene), NUM_HISTORY:])[None, :, None]
        actors = torch.ones(future.shape[:2], dtype=torch.bool)
        hits += collisions(future, actors, PEDESTRIAN_COLLISION_M, between_steps=True).sum().item()
    return hits / COUNTS[test_set.name][1]


@contextmanager
def sample_folder(folder: Path, test_set: TestSet) -> Iterator[Callable[[Outcome], Outcome]]:
    """Yield a function that writes an outcome to a new folder, complete at the end, and returns it (TrajformerError: not new)."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TrajformerError(f"{folder}: exists already; samples are written to a new folder")
    with atomically(folder) as temporary:
        temporary.mkdir()
        yield partial(_write_samples, temporary, test_set)


def _write_samples(folder: Path, test_set: TestSet, outcome: Outcome) -> Outcome:
    observation, position = (
        outcome.batch.observation,
        outcome.forecast.in_city_frame(outcome.batch.observation),
    )
    for b, scene in enumerate(outcome.windows):
        targets = outcome.batch.truth.valid[b, :, -1].nonzero().squeeze(1).tolist()
        agents = [observation.agent_id[b][target] for target in targets]
        step, first = test_set.frame_step[scene.city], int(scene.scene_id.rsplit("-", 1)[1])
        frames = [first + step * (NUM_HISTORY + future) for future in range(NUM_FUTURE)]
        name = f"{scene.city}/frame_{frames[0] - step:06d}"
        rows = [scene.agent_id.index(agent) for agent in agents]
        paths = {
            f"gt/{name}.txt": scene.position[rows, NUM_HISTORY:].astype(np.float64) + scene.origin
        }
        paths |= {
            f"samples/{name}/sample_{k:03d}.txt": mode
            for k, mode in enumerate(position[b, targets].swapaxes(0, 1))
        }
        heads = [f"{frame} {int(float(agent))}" for agent in agents for frame in frames]
        for file, tracks in paths.items():
            lines = [
                f"{head} {x:.4f} {y:.4f}\n"
                for head, (x, y) in zip(heads, tracks.reshape(-1, 2).tolist(), strict=True)
            ]
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text("".join(lines), encoding="ascii")
    return outcome


_LATER = ", corrected in their repository"
# Name, ADE/FDE of the five scenes and their mean (only the mean if the scenes were not given), source.
BEST_OF_20 = (
    (
        "Social-GAN",
        "0.87/1.62 0.67/1.37 0.76/1.52 0.35/0.68 0.42/0.84 0.61/1.21",
        "Gupta et al. 2018",
    ),
    (
        "Trajectron++ (leak fixed)",
        "0.67/1.18 0.18/0.28 0.30/0.54 0.25/0.41 0.18/0.32 0.32/0.55",
        f"Salzmann et al. 2020{_LATER}",
    ),
    (
        "AgentFormer (fixed)",
        "0.45/0.75 0.14/0.22 0.25/0.45 0.18/0.30 0.14/0.24 0.23/0.39",
        f"Yuan et al. 2021{_LATER}",
    ),
    ("MemoNet", "0.40/0.61 0.11/0.17 0.24/0.43 0.18/0.32 0.14/0.24 0.21/0.35", "Xu et al. 2022"),
    ("EqMotion", "0.40/0.61 0.12/0.18 0.23/0.43 0.18/0.32 0.13/0.23 0.21/0.35", "Xu et al. 2023"),
    (
        "SocialVAE",
        "0.41/0.58 0.13/0.19 0.21/0.36 0.17/0.29 0.13/0.22 0.21/0.33",
        "Xu, Hayet and Karamouzas 2022",
    ),
    (
        "SingularTrajectory",
        "0.35/0.42 0.13/0.19 0.25/0.44 0.19/0.32 0.15/0.25 0.21/0.32",
        "Bae et al. 2024",
    ),
    ("MoFlow", "0.40/0.57 0.11/0.17 0.23/0.39 0.15/0.26 0.12/0.22 0.20/0.32", "Fu et al. 2025"),
    ("PPT", "0.36/0.51 0.11/0.15 0.22/0.40 0.17/0.30 0.12/0.21 0.20/0.31", "Lin et al. 2024"),
)
MOST_PROBABLE = (
    ("Trajectron++", "- - - - - 0.52/1.11", "Salzmann et al. 2020"),
    ("SingularTrajectory", "- - - - - 0.47/0.90", "Bae et al. 2024"),
)


def table(models: Mapping[str, SceneMetrics], recorded: Mapping[str, float]) -> str:
    """The tables of published figures with rows of the given models, as text.

    `models` are figures by label of the model and by scene, with "mean" if all five scenes are present; `recorded` is the
    collision rate of the recordings by scene, and "mean".
    """
    parts = [
        "ETH/UCY, leave one scene out: 8 frames observed, 12 to predict (0.4 s each), all test windows, metres"
    ]

    def section(title: str, published: Sequence[Row], *names: str) -> None:
        rows = [*published]
        for label, metrics in models.items():
            cells = (metrics.get(column) for column in _COLUMNS)
            rows.append(
                (
                    label,
                    " ".join(
                        "/".join(f"{row[name]:.3f}" for name in names) if row else "-"
                        for row in cells
                    ),
                    "",
                )
            )
        parts.append(f"{title}\n{as_text(_COLUMNS, rows)}")

    section(f"best of {K}, minima taken separately: ADE/FDE", BEST_OF_20, f"ADE_{K}", f"FDE_{K}")
    section("most probable mode: ADE/FDE", MOST_PROBABLE, "ADE_1", "FDE_1")
    section(f"the mode of {K} with the best ADE: ADE/FDE", (), f"ADE_{K}", f"FDE_at_best_ADE_{K}")
    section(f"best of {K} worlds, minima taken separately: JADE/JFDE", (), f"JADE_{K}", f"JFDE_{K}")
    title = f"pedestrians who collide (under 0.2 m from another one's centre), mean over {K} worlds, percent"
    rates = {
        label: {s: f[f"collision_rate_{K}"] for s, f in metrics.items() if f}
        for label, metrics in models.items()
    }
    rows = []
    for label, rate in ({"recorded": recorded} | rates).items():
        rows.append(
            (label, " ".join(f"{100 * rate[c]:.2f}" if c in rate else "-" for c in _COLUMNS), "")
        )
    return "\n\n".join([*parts, f"{title}\n{as_text(_COLUMNS, rows)}"])
