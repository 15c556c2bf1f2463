"""Resampled scenes follow the recorded motion, keep gaps, and do not look into the future."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.scenes import PERIOD_S, hide, make_scene
from support.stores import make_store, problems

from trajformer.errors import SceneError, StoreError
from trajformer.scenes.geometry import GRID_M
from trajformer.scenes.manifest import RESAMPLED
from trajformer.scenes.resample import resample_scene, resample_store
from trajformer.scenes.scene import Scene, scenes_equal
from trajformer.scenes.shard import Shard, shard_path
from trajformer.scenes.store import SceneStore

SPEED_M_S, TURN_RAD_S, H, F = 8.0, 0.7, 20, 30


def moving(period_s: float, num_history: int = H, num_future: int = F) -> Scene:
    """A scene in which the first agent drives a circle, with a heading beyond pi.

    All others drive straight ahead.
    """
    scene = make_scene(4, num_history=num_history, num_future=num_future)
    time = period_s * np.arange(1 - num_history, num_future + 1)
    heading, radius = 3.0 + TURN_RAD_S * time, SPEED_M_S / TURN_RAD_S
    position, velocity = scene.position.copy(), scene.velocity.copy()
    position[:] = np.stack([SPEED_M_S * time, -0.5 * SPEED_M_S * time], -1)
    velocity[:] = [SPEED_M_S, -0.5 * SPEED_M_S]
    position[0] = radius * np.stack([np.sin(heading), -np.cos(heading)], -1)
    velocity[0] = SPEED_M_S * np.stack([np.cos(heading), np.sin(heading)], -1)
    angles = np.arctan2(np.sin(heading), np.cos(heading)) * np.ones_like(scene.heading)
    arrays = {"position": position, "velocity": velocity, "heading": angles.astype(np.float32)}
    return replace(scene, period_s=period_s, valid=np.ones_like(scene.valid), **arrays).validate()


@pytest.mark.parametrize("period_s", [0.05, 0.1, 0.2, 0.25, 0.03])
def test_resampled_positions_follow_the_motion(period_s: float) -> None:
    """Straight motion is exact, and a circle is resampled to chords.

    On a circle of radius r, a chord of angle a is at most r (1 - cos(a / 2)) from the arc.
    """
    resampled = resample_scene(moving(0.1), period_s)
    assert resampled.num_history == math.floor(19 * 0.1 / period_s + 1e-9) + 1
    assert resampled.num_future == math.floor(3.0 / period_s + 1e-9)
    expected = moving(period_s, resampled.num_history, resampled.num_future)
    radius = SPEED_M_S / TURN_RAD_S
    angle = TURN_RAD_S * 0.1
    sagitta = radius * (1 - math.cos(angle / 2))
    for name, scale in (("position", 1.0), ("velocity", TURN_RAD_S)):
        gap = np.linalg.norm(getattr(resampled, name) - getattr(expected, name), axis=-1)
        assert gap[0].max() <= scale * sagitta + GRID_M, name
        assert gap[1:].max() < GRID_M, name
    assert np.abs(np.sin(resampled.heading - expected.heading)).max() < 1e-6
    assert np.abs(resampled.heading).max() <= math.pi + 1e-6
    assert (resampled.heading[0] < 0).any()
    assert resampled.valid.all()
    assert resampled.period_s == period_s


def test_the_recorded_steps_are_kept_and_the_same_clock_changes_nothing() -> None:
    scene = make_scene(8)
    assert scenes_equal(resample_scene(scene), scene)
    twice = resample_scene(resample_scene(scene, PERIOD_S / 4), PERIOD_S)
    for name in ("position", "velocity", "valid", "heading"):
        np.testing.assert_array_equal(
            getattr(twice, name), getattr(scene, name)[:, : twice.num_steps], name
        )
    short = resample_scene(scene, num_history=4, num_future=3)
    kept = slice(scene.num_history - 4, scene.num_history + 3)
    np.testing.assert_array_equal(short.position, scene.position[:, kept])


def test_gaps_stay_gaps_and_observed_steps_use_observed_steps_only() -> None:
    scene = hide(moving(0.1), 1, slice(5, 8))
    fine = resample_scene(scene, 0.05)
    at = 19 + 0.5 * np.arange(1 - fine.num_history, fine.num_future + 1)  # recorded step
    assert (fine.valid[1] == ((at <= 4) | (at >= 8))).all()
    assert not fine.position[1][~fine.valid[1]].any()
    other = hide(scene, 0, slice(H, H + F))
    with_other_future = resample_scene(other, 0.03)
    expected = resample_scene(scene, 0.03)
    past = slice(fine.num_history)
    for name in ("position", "heading", "velocity", "valid"):
        np.testing.assert_array_equal(
            getattr(with_other_future, name)[:, past], getattr(expected, name)[:, past], name
        )
    test = make_scene(4, with_future=False)
    half = resample_scene(test, 2 * PERIOD_S)
    assert half.num_steps == half.num_history
    assert half.num_future == test.num_future // 2


def test_periods_with_rounding_errors_are_whole_multiples() -> None:
    scene = moving(0.033333333, 181, 180)  # a typed 30 Hz
    result = resample_scene(scene, 0.1)
    assert (result.num_history, result.num_future) == (61, 60)
    valid = scene.valid & (np.arange(361) < 360)
    shorter = replace(
        scene,
        valid=valid,
        position=scene.position * valid[..., None],
        velocity=scene.velocity * valid[..., None],
        heading=scene.heading * valid,
    )
    assert result.valid.all()
    assert np.array_equal(resample_scene(shorter, 0.1).valid[:, :-1], result.valid[:, :-1])
    assert np.array_equal(result.position[:, :61], scene.position[:, :181:3])


@pytest.mark.parametrize(
    ("clock", "message"),
    [
        ({"num_history": 21}, "num_history: 21 steps of 0.1 s, expected 1 to 20 "),
        ({"num_future": 31}, "num_future: 31 steps of 0.1 s, expected 1 to 30 "),
        ({"period_s": 0.2, "num_history": 11}, "num_history: 11 steps of 0.2 s, expected 1 to 10 "),
        ({"period_s": 0.2, "num_future": 16}, "num_future: 16 steps of 0.2 s, expected 1 to 15 "),
        ({"period_s": 9.0}, "num_future: 0 steps of 9.0 s"),
    ],
)
def test_lengths_that_were_not_recorded_are_errors(clock: dict, message: str) -> None:
    with pytest.raises(SceneError, match=message):
        resample_scene(moving(PERIOD_S), **clock)


def test_a_resampled_store_lists_scenes_that_are_too_short(tmp_path: Path) -> None:
    """The random scenes have 2 to 5 observed steps and 1 to 6 to predict."""
    scenes = make_store(tmp_path / "store", (6, 5), clock={})
    manifest = resample_store(
        tmp_path / "store",
        tmp_path / "new",
        lambda paths, total: paths,
        num_history=3,
        num_future=2,
    )
    long_enough = [scene for scene in scenes if scene.num_history >= 3 and scene.num_future >= 2]
    assert 0 < len(long_enough) < len(scenes)
    store = SceneStore(tmp_path / "new", "train")
    assert store.scene_ids() == [scene.scene_id for scene in long_enough]
    assert {(scene.num_history, scene.num_future) for scene in store} == {(3, 2)}
    skipped = {entry["input"] for entry in manifest["splits"]["train"]["skipped"]}
    too_short = {scene.scene_id for scene in scenes if scene not in long_enough}
    assert skipped == {"bad-0", "bad-1"} | too_short
    assert Shard(shard_path(tmp_path / "new", "train", 1)).info.source == "random"
    assert json.loads((tmp_path / "new" / RESAMPLED).read_text())["num_history"] == 3
    assert problems(tmp_path / "new") == []
    assert list(tmp_path.glob(".*")) == []
    with pytest.raises(StoreError, match="num_history: 9 steps"):
        resample_store(
            tmp_path / "store", tmp_path / "none", lambda paths, total: paths, num_history=9
        )
    assert not (tmp_path / "none").exists()
