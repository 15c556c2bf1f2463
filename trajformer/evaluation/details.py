"""Further columns of the table of agents: map, dynamics, overlaps, calibration, crowds.

They take longer than errors of positions and are computed on request. Paths belong to the most
probable mode, and `recorded_` columns have the same values of the recording. Values are NaN where
there is no answer, such as off_road without drivable areas. Definitions are in the modules of
`trajformer.evaluation.metrics`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trajformer.evaluation.columns import Columns, ScoredBatch
from trajformer.evaluation.metrics import calibration
from trajformer.evaluation.metrics.boxes import overlaps
from trajformer.evaluation.metrics.crowd import crowd_metrics, recorded_collisions
from trajformer.evaluation.metrics.displacement import MANY_MODES
from trajformer.evaluation.metrics.map_compliance import SceneMap, compliance
from trajformer.evaluation.scoring import RECORDED, Detail, Rules
from trajformer.scenes.scene import Scene

Values = dict[str, np.ndarray]  # float64 [N] by name


class ScenePaths(NamedTuple):
    """The N scored agents of a scene, in metres relative to its origin."""

    scene: Scene
    targets: np.ndarray  # int64 [N], indices among the targets of the batch
    rows: np.ndarray  # int64 [N], indices in the scene
    modes: np.ndarray  # float64 [N, K, F, 2]
    probability: np.ndarray  # float64 [N, K]
    truth: np.ndarray  # float64 [N, F, 2]
    valid: np.ndarray  # bool [N, F]

    @property
    def best(self) -> np.ndarray:
        """Index int64 [N] of the most probable mode."""
        return np.asarray(self.probability.argmax(1))

    def of_best(self, value: np.ndarray) -> np.ndarray:
        """The values [N, ...] of the most probable mode, from [N, K, ...]."""
        return value[np.arange(len(value)), self.best]


def scene_paths(scored: ScoredBatch) -> Iterator[tuple[int, ScenePaths]]:
    """The scenes of a batch that have scored agents, with their index."""
    observation = scored.batch.observation
    position = scored.forecast.in_city_frame(observation)
    probability = scored.forecast.probability().detach().double().cpu().numpy()
    counts = scored.batch.truth.valid[..., -1].cpu().numpy()
    for b, scene in enumerate(scored.scenes):
        targets = np.flatnonzero(counts[b])
        if not len(targets):
            continue
        row_of = {track_id: row for row, track_id in enumerate(scene.agent_id)}
        rows = np.array([row_of[observation.agent_id[b][s]] for s in targets.tolist()], np.int64)
        future = slice(scene.num_history, None)
        yield (
            b,
            ScenePaths(
                scene=scene,
                targets=targets,
                rows=rows,
                modes=position[b, targets] - scene.origin,
                probability=probability[b, targets],
                truth=scene.position[rows, future].astype(np.float64),
                valid=scene.valid[rows, future],
            ),
        )


def _columns(function: Callable[[ScenePaths, Rules], Values]) -> Columns:
    """Columns of a function of one scene."""

    def values(scored: ScoredBatch, rules: Rules) -> dict[str, Tensor]:
        shape = scored.batch.observation.target_mask.shape
        columns: dict[str, np.ndarray] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # means and maxima of NaN only
            for b, paths in scene_paths(scored):
                for name, value in function(paths, rules).items():
                    column = columns.setdefault(name, np.full(shape, np.nan))
                    column[b, paths.targets] = value
        device = scored.batch.truth.valid.device
        return {name: torch.from_numpy(column).to(device) for name, column in columns.items()}

    return Columns(values, "detail")


def _map(paths: ScenePaths, rules: Rules) -> Values:
    """Violations of the map, and metres to the nearest centerline as means over steps.

    off_road_modes is the share of all modes.
    """
    scene_map = SceneMap.of(paths.scene)
    predicted = compliance(scene_map, paths.scene, paths.rows, paths.modes)
    truth = paths.truth[:, None]
    recorded = compliance(scene_map, paths.scene, paths.rows, truth, paths.valid[:, None])
    return {
        "off_road": paths.of_best(predicted.off_road),
        f"{RECORDED}off_road": recorded.off_road[:, 0],
        "off_road_modes": np.nanmean(predicted.off_road, 1),
        "wrong_way": paths.of_best(predicted.wrong_way),
        f"{RECORDED}wrong_way": recorded.wrong_way[:, 0],
        "lane_distance": np.nanmean(paths.of_best(predicted.lane_distance), -1),
        f"{RECORDED}lane_distance": np.nanmean(recorded.lane_distance[:, 0], -1),
    }


def _dynamics(paths: ScenePaths, rules: Rules) -> Values:
    """The largest acceleration, yaw rate and jerk of each agent with a complete future."""
    # imports torchmetrics, which takes seconds
    from trajformer.evaluation.metrics.plausibility import dynamics

    is_complete = np.asarray(paths.valid.all(1))[:, None, None]
    truth = np.where(is_complete, paths.truth, np.nan)
    best = np.where(is_complete, paths.of_best(paths.modes), np.nan)
    columns: Values = {}
    if truth.shape[1] < 4:
        return columns
    for prefix, path in (("", best), (RECORDED, truth)):
        values = dynamics(path, paths.scene.period_s)
        for name, value in values._asdict().items():
            columns[f"{prefix}max_{name}"] = np.nanmax(value, -1)
    return columns


def _overlap(paths: ScenePaths, rules: Rules) -> Values:
    """Overlaps of the boxes of scored agents.

    Overlaps of the most probable modes, which several agents choose without each other, and the
    share of worlds: mode k of all agents. size_assumed is 1 for agents without a recorded size.
    """
    scene = paths.scene
    best = overlaps(scene, paths.rows, paths.of_best(paths.modes)[:, None])
    worlds = overlaps(scene, paths.rows, paths.modes)
    recorded = overlaps(scene, paths.rows, paths.truth[:, None], paths.valid[:, None])
    share_of_worlds = worlds.overlap.mean(1)
    return {
        "overlap": np.where(best.known, best.overlap, np.nan)[:, 0],
        f"{RECORDED}overlap": np.where(recorded.known, recorded.overlap, np.nan)[:, 0],
        "overlap_worlds": np.where(worlds.known.any(1), share_of_worlds, np.nan),
        "size_assumed": best.assumed.astype(np.float64),
    }


def _calibration(paths: ScenePaths, rules: Rules) -> Values:
    """Brier score, truths near a mode, and the columns of a reliability diagram."""
    error = calibration.end_errors(paths.modes, paths.truth, paths.valid)
    nearest = calibration.nearest_mode(error)
    columns = {"brier_score": calibration.brier_score(paths.probability, nearest)}
    near_any = calibration.near_any_mode(error)
    near_best = calibration.near_most_probable(error, paths.probability)
    for index, limit_m in enumerate(calibration.NEAR_M):
        columns[f"near_{limit_m:g}m"] = near_any[:, index]
        columns[f"most_probable_near_{limit_m:g}m"] = near_best[:, index]
    columns["top_probability"] = paths.of_best(paths.probability)
    columns["top_is_nearest"] = (paths.best == nearest).astype(np.float64)
    return columns


def _crowd(scored: ScoredBatch, rules: Rules) -> dict[str, Tensor]:
    """The metrics of papers on pedestrians, of the best of K samples."""
    k = rules.best_of or MANY_MODES
    truth = scored.batch.truth
    metrics, _ = crowd_metrics(
        scored.forecast, truth.position, truth.valid, k=k, collision_m=rules.collision_m
    )
    recorded = torch.full(truth.valid.shape[:2], torch.nan, dtype=torch.float64)
    for b, paths in scene_paths(scored):
        complete = np.flatnonzero(paths.valid.all(1))
        hits = recorded_collisions(paths.truth[complete], rules.collision_m)
        recorded[b, paths.targets[complete]] = torch.from_numpy(hits).double()
    metrics[f"{RECORDED}collision_rate_{k}"] = recorded.to(truth.valid.device)
    return metrics


DETAILS: dict[Detail, Columns] = {
    "map": _columns(_map),
    "dynamics": _columns(_dynamics),
    "overlap": _columns(_overlap),
    "calibration": _columns(_calibration),
    "crowd": Columns(_crowd, "detail"),
}


def detail_groups(rules: Rules) -> list[Columns]:
    """The groups of columns that the rules ask for."""
    return [DETAILS[name] for name in rules.details]
