"""Metrics of pedestrians: closed forms, and loops over agents, modes and steps in plain Python."""

import numpy as np

from trajformer.evaluation.metrics.crowd import (
    crowd_metrics,
    crowd_names,
    one_scene,
    recorded_collisions,
)
from trajformer.scenes.scene import Scene

F = 12


def walk(x: float, y: float, step: float) -> np.ndarray:
    """A path [F, 2] along the x axis."""
    return np.stack([x + step * np.arange(F), np.full(F, y)], -1)


def test_closed_forms() -> None:
    """Two agents with two worlds: one world fits one agent, the other world the other agent."""
    truth = np.stack([walk(0, 0, 0.5), walk(0, 4, 0.5)])
    shift = np.array([[[0, 0], [0, 1]], [[0, 3], [0, 0]]])  # of agents and modes
    modes = truth[:, None] + shift[:, :, None]
    probability = np.array([[0.6, 0.4], [0.9, 0.1]])
    valid = np.ones((2, F), bool)
    metrics, counts = crowd_metrics(*one_scene(modes, probability, truth, valid), k=2)
    assert set(crowd_names(2)) <= set(metrics)
    assert counts.all()
    assert metrics["ADE_1"].tolist() == [[0.0, 3.0]]
    assert metrics["ADE_2"].tolist() == [[0.0, 0.0]]
    assert metrics["JADE_2"].tolist() == [[0.5, 0.5]]
    assert metrics["JFDE_2"].tolist() == [[0.5, 0.5]]
    assert metrics["collision_rate_2"].tolist() == [[0.0, 0.0]]


def test_a_probability_of_zero_and_agents_without_an_end_give_no_nan() -> None:
    truth = np.stack([walk(0, 0, 0.5), walk(0, 4, 0.5)])
    valid = np.ones((2, F), bool)
    valid[1, -1] = False
    probability = np.array([[1.0, 0.0], [0.0, 1.0]])
    modes = np.repeat(truth[:, None], 2, 1)
    metrics, counts = crowd_metrics(*one_scene(modes, probability, truth, valid), k=2)
    assert counts.tolist() == [[True, False]]
    for name in crowd_names(2):
        assert metrics[name][counts].isfinite().all()


def test_people_that_swap_positions_collide_between_steps() -> None:
    meeting = np.stack([walk(0, 0, 1.0), walk(F - 1, 0.1, -1.0), walk(0, 0.25, 1.0)])
    assert recorded_collisions(meeting).tolist() == [True, True, True]
    assert recorded_collisions(meeting[[0, 2]]).tolist() == [False, False]
    assert recorded_collisions(meeting[[0, 2]], 0.3).tolist() == [True, True]


def segment_gap(start: np.ndarray, end: np.ndarray) -> float:
    """Distance from zero to the segment from `start` to `end`."""
    step = end - start
    square = float(step @ step)
    along = 0.0
    if square > 0:
        along = min(max(-float(start @ step) / square, 0.0), 1.0)
    return float(np.linalg.norm(start + along * step))


def test_real_scenes_equal_plain_python(argoverse2_scenes: list[Scene]) -> None:
    rng = np.random.default_rng(0)
    for scene in argoverse2_scenes:
        rows = np.flatnonzero(scene.valid[:, scene.num_history :].all(1))[:8]
        truth = scene.position[rows, scene.num_history :].astype(np.float64)
        modes = truth[:, None] + rng.normal(size=(len(rows), 5, len(truth[0]), 2)).cumsum(2) / 9
        probability = rng.dirichlet(np.ones(5))
        valid = np.ones(truth.shape[:2], bool)
        arguments = one_scene(modes, probability, truth, valid)
        metrics, _ = crowd_metrics(*arguments, k=3, collision_m=2.0)

        kept = np.argsort(-probability)[:3]
        error = np.linalg.norm(modes - truth[:, None], axis=-1)
        ade = error.mean(-1)
        np.testing.assert_allclose(metrics["ADE_3"][0], ade[:, kept].min(1))
        np.testing.assert_allclose(metrics["FDE_1"][0], error[:, kept[0], -1])
        joint = ade.mean(0)[kept]
        np.testing.assert_allclose(metrics["JADE_3"][0], np.full(len(rows), joint.min()))
        best = kept[joint.argmin()]
        at_best = np.full(len(rows), error[:, best, -1].mean())
        np.testing.assert_allclose(metrics["JFDE_at_best_JADE_3"][0], at_best)
        rate = [collision_share(modes, agent, 2.0) for agent in range(len(rows))]
        np.testing.assert_allclose(metrics["collision_rate_3"][0], rate)


def collision_share(modes: np.ndarray, agent: int, limit: float) -> float:
    """Share of worlds in which an agent comes closer than the limit to another agent."""
    hits = 0
    for world in range(modes.shape[1]):
        gaps = []
        for other in range(len(modes)):
            if other == agent:
                continue
            offset = modes[other, world] - modes[agent, world]
            gaps += [segment_gap(offset[t], offset[t + 1]) for t in range(len(offset) - 1)]
        hits += int(min(gaps) < limit)
    return hits / modes.shape[1]
