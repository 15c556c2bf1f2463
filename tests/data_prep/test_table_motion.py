"""Headings and velocities of tables of positions: rows before a window, lanes, wrong positions."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import tables
from support.scenes import assert_same_history
from support.tables import frame, read, read_all, write

from data_prep.readers.table.reader import Table
from trajformer.scenes.scene import Scene

READER = Table(num_history=20, num_future=10, stride=10)
ALONG_Y = np.pi / 2


def positions(name: str, xy: np.ndarray, first_step: int = 0, **cells: Any) -> pd.DataFrame:
    """Rows of a track at positions [n, 2]."""
    step = first_step + np.arange(len(xy))
    columns = {"track_id": name, "step": step, "x": xy[:, 0], "y": xy[:, 1]}
    return pd.DataFrame(columns | cells, index=range(len(xy)))


def stops_at_red_light(noise_m: float, seed: int = 0) -> np.ndarray:
    """Positions [200, 2]: 4 s at 8 m/s along y, then the car waits."""
    y = 0.1 * np.cumsum(np.where(np.arange(200) < 40, 8.0, 0.0))
    noise = np.random.default_rng(seed).normal(0, noise_m, (200, 2))
    return np.stack([np.zeros(200), y], -1) + noise


def passes(steps: int = 200) -> pd.DataFrame:
    """A car that drives past in all steps."""
    step = np.arange(steps)
    return positions("z", np.stack([9.0 + 0 * step, 200 - 0.8 * step], -1))


def last_observed(scene: Scene, name: str) -> tuple[float, np.ndarray]:
    """Heading and velocity [2] of an agent in the last observed step."""
    agent = scene.agent_id.index(name)
    last = scene.num_history - 1
    assert scene.valid[agent, last]
    return float(scene.heading[agent, last]), scene.velocity[agent, last]


@pytest.mark.parametrize("noise_m", [0.01, 0.05, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_windows_of_a_standing_car_have_its_last_heading(
    tmp_path: Path, noise_m: float, seed: int
) -> None:
    table = frame(positions("a", stops_at_red_light(noise_m, seed)), passes())
    write(tmp_path / "val" / "drive.csv", table)
    scenes = read_all(tmp_path, READER)
    assert len(scenes) == 18
    speeds = []
    for scene in scenes.values():
        heading, velocity = last_observed(scene, "a")
        assert abs(heading - ALONG_Y) < np.radians(10)
        if int(scene.scene_id.split("-t")[1]) >= 50:
            speeds.append(np.linalg.norm(velocity))
    assert np.median(speeds) < 0.1
    assert np.max(speeds) < max(0.3, 6 * noise_m)


def test_windows_do_not_depend_on_later_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = [positions("a", stops_at_red_light(0.1)), passes()]
    for number in range(6):
        walk = rng.normal(0, 3, (70, 2)).cumsum(0)
        parts.append(positions(f"walk{number}", walk, first_step=25 * number))
    table = frame(*parts)
    write(tmp_path / "val" / "drive.csv", table)
    scenes = read_all(tmp_path, READER)
    for present in (49, 50, 119):
        changed = table.copy()
        is_later = changed.step > present
        changed.loc[is_later, ["x", "y"]] += rng.normal(0, 9, (int(is_later.sum()), 2))
        folder = tmp_path / str(present)
        write(folder / "val" / "drive.csv", changed)
        for name, scene in read_all(folder, READER).items():
            if int(name.split("-t")[1]) + 19 <= present:
                assert_same_history(scene, scenes[name])


def test_tracks_that_begin_in_a_window_look_ahead_in_its_history(tmp_path: Path) -> None:
    step = np.arange(100)
    late = np.stack([0.5 * step, 0 * step], -1)[48:]
    table = frame(positions("a", late, first_step=48), passes(100))
    write(tmp_path / "val" / "drive.csv", table)
    scenes = read_all(tmp_path, READER)
    scene = scenes["drive-t30"]  # the last observed step is 49
    agent = scene.agent_id.index("a")
    assert np.allclose(scene.velocity[agent, 18:20], (5.0, 0.0), atol=0.05)
    scene = scenes["drive-t50"]  # the track began two steps before
    assert np.allclose(scene.velocity[scene.agent_id.index("a")], (5.0, 0.0), atol=0.05)


@pytest.mark.parametrize("jump_m", [1.0, 3.0, 30.0])
def test_a_wrong_position_does_not_turn_a_standing_car(tmp_path: Path, jump_m: float) -> None:
    xy = stops_at_red_light(0.02)
    xy[75, 0] += jump_m
    write(tmp_path / "val" / "drive.csv", frame(positions("a", xy), passes()))
    for name, scene in read_all(tmp_path, READER).items():
        heading, velocity = last_observed(scene, "a")
        assert abs(heading - ALONG_Y) < np.radians(10), name
        if int(name.split("-t")[1]) >= 60:
            assert np.linalg.norm(velocity) < 0.3


def test_an_empty_position_affects_its_own_windows(tmp_path: Path) -> None:
    table = frame(positions("a", stops_at_red_light(0.02)), passes())
    table["x"] = table.x.where(~((table.track_id == "a") & (table.step == 60)))
    write(tmp_path / "val" / "drive.csv", table)
    for item in READER.inputs(tmp_path, "val"):
        first = int(item.part.split("-t")[1])
        if first > 60:
            heading, _ = last_observed(READER.read(item, "val", tmp_path), "a")
            assert abs(heading - ALONG_Y) < np.radians(10)


LANES = (
    {"id": 1, "points": [[-50, 0], [50, 0]]},
    {"id": 2, "points": [[50, 4], [-50, 4]]},
    {"id": 3, "kind": "crosswalk", "points": [[20, -5], [20, 5], [23, 5], [23, -5]]},
)


@pytest.mark.parametrize(
    ("kind", "xy", "heading"),
    [
        ("vehicle", (0.0, -0.5), 0.0),
        ("vehicle", (0.0, 7.0), np.pi),
        ("bus", (20.0, 3.5), np.pi),  # near a crosswalk
        ("", (0.0, 3.0), np.pi),
        ("vehicle", (0.0, -6.0), 0.0),  # too far: no heading
        ("pedestrian", (0.0, 4.0), 0.0),
    ],
)
def test_agents_that_never_moved_face_along_the_nearest_lane(
    tmp_path: Path, kind: str, xy: tuple[float, float], heading: float
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (30, 2))
    table = frame(positions("a", np.array(xy) + noise, kind=kind), passes(30).assign(kind="bus"))
    tables.write_lanes(tmp_path / "lanes.json", *LANES)
    scene = read(tmp_path, table, READER)
    agent = scene.agent_id.index("a")
    assert np.allclose(scene.heading[agent], heading)
    assert np.linalg.norm(scene.velocity[agent], axis=-1).max() < 0.6


def test_lanes_do_not_replace_given_headings(tmp_path: Path) -> None:
    standing = np.zeros((30, 2))
    table = frame(positions("a", standing, heading=0.7), passes(30).assign(heading=-ALONG_Y))
    tables.write_lanes(tmp_path / "lanes.json", *LANES)
    scene = read(tmp_path, table, READER)
    assert np.allclose(scene.heading[scene.agent_id.index("a")], 0.7)
