"""Submissions to the Argoverse 2 challenge: order of modes, complete agents, and refused scenes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.scenes import make_scene

from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, write_forecasts
from trajformer.evaluation.submission import (
    agents_without_forecast,
    check_scenes_of_challenge,
    without_ties,
)
from trajformer.scenes.scene import AgentRole
from trajformer.scenes.spec import DataSpec

CHALLENGE = DataSpec(source="argoverse2", period_s=0.1, num_future=60)
TIED = np.array([0.0, 0.25, 0.5, 0.25, 0.0, 0.0])


def joint_forecasts() -> list[TrackForecast]:
    """Twenty tracks of one scene, in which mode k goes to x = k, with tied probabilities."""
    position = np.zeros((6, 60, 2))
    position[:, :, 0] = np.arange(6.0)[:, None]
    return [TrackForecast("scene", str(number), TIED, position) for number in range(20)]


def test_modes_have_one_order_and_almost_the_same_probabilities() -> None:
    [first, *others] = without_ties(joint_forecasts())
    assert (np.diff(first.probability) < 0).all()
    assert first.probability.sum() == pytest.approx(1.0, abs=1e-12)
    assert first.position[:, 0, 0].tolist() == [2, 1, 3, 0, 4, 5]
    order = np.argsort(-TIED, kind="stable")
    np.testing.assert_allclose(first.probability, TIED[order], atol=1e-6)
    for other in others:
        np.testing.assert_array_equal(other.probability, first.probability)


def test_av2_reads_mode_k_of_all_tracks_as_one_joint_future(tmp_path: Path) -> None:
    av2 = pytest.importorskip("av2.datasets.motion_forecasting.eval.submission")
    path = tmp_path / "submission.parquet"
    written = list(without_ties(joint_forecasts()))
    write_forecasts(path, written, CHALLENGE)
    [(probability, tracks)] = av2.ChallengeSubmission.from_parquet(path).predictions.values()
    np.testing.assert_allclose(probability, written[0].probability, rtol=1e-14)
    assert len(tracks) == 20
    for position in tracks.values():
        assert position[:, 0, 0].tolist() == [2, 1, 3, 0, 4, 5]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"source": "interaction"}, "60 steps of 0.1 s of interaction"),
        ({"num_future": 30}, "30 steps of 0.1 s of argoverse2"),
        ({"period_s": 0.2}, "60 steps of 0.2 s of argoverse2"),
    ],
)
def test_other_scenes_are_refused(change: dict[str, object], found: str) -> None:
    check_scenes_of_challenge(CHALLENGE)
    with pytest.raises(TrajformerError, match=f"{found}, expected 60 steps"):
        check_scenes_of_challenge(replace(CHALLENGE, **change))  # type: ignore[arg-type]


def test_missing_agents_are_listed() -> None:
    scene = make_scene()
    role = np.zeros_like(scene.agent_role)
    role[:2] = [int(AgentRole.SCORED), int(AgentRole.FOCAL)]
    scene = replace(scene, agent_role=role)
    scored, focal = scene.agent_id[:2]
    key = scene.scene_id
    assert agents_without_forecast([scene], {}, "single") == [(key, focal)]
    assert agents_without_forecast([scene], {key: {focal}}, "single") == []
    assert agents_without_forecast([scene], {key: {focal}}, "multi") == [(key, scored)]
