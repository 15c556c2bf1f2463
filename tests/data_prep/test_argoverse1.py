"""The Argoverse 1 reader: layout, estimated motion, causality, lanes, and the real sample."""

import csv
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import fixtures
from support.fixtures import CITY_XY, Track, argoverse1_rows, argoverse1_tracks, straight
from support.scenes import (
    agent,
    assert_near,
    assert_same_history,
    assert_same_steps,
    in_city,
    named_edges,
    with_role,
)

from data_prep.reader import Input
from data_prep.readers.argoverse1 import Argoverse1
from trajformer.scenes.scene import AgentKind, AgentRole, EdgeKind, LaneFlag, Scene

H = 20
Rows = list[list[str]]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A raw folder with a map and no sequence yet."""
    fixtures.write_argoverse1_map(tmp_path / "raw" / "map_files")
    return tmp_path / "raw"


def read(
    raw: Path, tracks: list[Track] | Rows, split: str = "train", reader: Argoverse1 | None = None
) -> Scene:
    """Write the tracks (or rows) as sequence 7 and read it back."""
    rows = argoverse1_rows(tracks) if isinstance(tracks[0], Track) else tracks
    path = fixtures.write_argoverse1(raw / split / "data" / "7.csv", rows)
    return (reader or Argoverse1()).read(Input(path), split, raw).validate()


def test_a_sequence_becomes_a_scene(raw: Path) -> None:
    tracks = argoverse1_tracks()
    scene = read(raw, tracks)
    names = (scene.scene_id, scene.source, scene.split, scene.city)
    assert names == ("7", "argoverse1", "train", "PIT")
    assert (scene.num_history, scene.num_future, scene.num_steps) == (20, 30, 50)
    assert scene.period_s == 0.1
    assert scene.agent_id == tuple(track.name for track in tracks)
    assert scene.agent_kind.tolist() == [AgentKind.VEHICLE] * 2 + [AgentKind.UNKNOWN] * 6
    assert scene.agent_role.tolist() == [AgentRole.FOCAL] + [AgentRole.CONTEXT] * 7
    assert np.array_equal(scene.origin, tracks[0].positions[H - 1])
    for index, track in enumerate(tracks):
        span = slice(track.start, track.start + len(track.positions))
        assert scene.valid[index].sum() == len(track.positions)
        assert scene.valid[index, span].all()
        assert_near(in_city(scene)[index, span], track.positions, 1e-4)


def test_estimates_follow_straight_motion_and_a_turn(raw: Path) -> None:
    angle = 0.03 * np.arange(50)  # 0.3 rad/s on a circle of 30 m: 9 m/s
    circle = CITY_XY + 30.0 * np.stack([np.sin(angle), -np.cos(angle)], -1)
    noise = np.random.default_rng(1).normal(0, 0.05, circle.shape)
    turning = Track("x", "OTHERS", circle + noise)
    going = Track("y", "OTHERS", straight(50, (0, 40), (-3.0, 4.0)))
    rows = argoverse1_rows([*argoverse1_tracks(), turning, going])
    scene = read(raw, rows)
    x = agent(scene, "x")
    y = agent(scene, "y")
    speed = np.linalg.norm(scene.velocity[x], axis=-1)
    assert_near(scene.heading[x, 10:], angle[10:], np.radians(6))
    assert_near(speed[10:], 9.0, 1.0)
    assert_near(scene.velocity[y], np.tile((-3.0, 4.0), (50, 1)), 0.02)  # from the first step on
    assert_near(scene.heading[y], np.arctan2(4, -3), 1e-3)

    # A step is the rank of a timestamp: other intervals and another order of rows change nothing.
    late = []
    for time, *rest in reversed(rows):
        seconds = float(time) - 315971499.0
        late.append([f"{seconds**2:.6f}", *rest])
    assert np.array_equal(read(raw, late).position, scene.position)


def test_standing_agents_face_along_their_lane_and_stopping_ones_keep_their_heading(
    raw: Path,
) -> None:
    speed = np.maximum(0.0, 6.0 - 0.3 * np.arange(50))  # -3 m/s^2 until it stops at step 20
    stopped = straight(50, (3, 40), (0.0, 0.0))
    stopped[:, 1] += 0.1 * np.cumsum(speed)
    scene = read(raw, [*argoverse1_tracks(), Track("x", "OTHERS", stopped)])
    parked = agent(scene, "02-parked")
    off_lane = agent(scene, "03-off-lane")
    assert_near(scene.heading[parked], np.pi, 1e-5)  # lane 13 points to -x, half a metre away
    assert not scene.heading[off_lane].any()
    assert not scene.velocity[[parked, off_lane]].any()
    assert_near(scene.heading[agent(scene, "x")], np.pi / 2, 1e-3)


def test_the_history_does_not_depend_on_the_future(raw: Path) -> None:
    tracks = argoverse1_tracks()
    scene = read(raw, tracks)
    known = []
    for track in tracks:
        observed = max(0, H - track.start)  # steps
        if observed:
            past = track.positions[:observed].copy()
            known.append(Track(track.name, track.kind, past, track.start))
        noise = np.random.default_rng(2).normal(0, 50, 2)
        track.positions[observed:] = CITY_XY + noise
    changed = read(raw, tracks)
    assert_same_history(scene, changed)
    assert not np.array_equal(scene.velocity[:, H:], changed.velocity[:, H:])
    short = read(raw, known, "test_obs")
    assert short.num_steps == H
    for track in known:
        assert_same_steps(scene, short, track.name, H, 1e-6)


@pytest.mark.parametrize("last", [5, 14])
def test_earlier_steps_do_not_depend_on_later_history(raw: Path, last: int) -> None:
    tracks = argoverse1_tracks()
    scene = read(raw, tracks)
    others = [t for t in tracks if t.start == 0 and t.kind == "OTHERS"]
    for track in others:
        track.positions = track.positions[: last + 1]
    cut = read(raw, tracks)
    for track in others:
        assert_same_steps(scene, cut, track.name, last + 1, 1e-6)


def test_lanes_near_the_agent_with_their_flags_and_edges(raw: Path) -> None:
    scene = read(raw, argoverse1_tracks())
    # 15 is 300 m from the observed path; of 14 only the middle is near.
    assert scene.polyline_id.tolist() == [11, 12, 13, 14]
    assert not scene.polyline_kind.any()
    left = LaneFlag.TURN_LEFT | LaneFlag.INTERSECTION
    right = LaneFlag.TURN_RIGHT | LaneFlag.TRAFFIC_CONTROL
    assert scene.polyline_flags.tolist() == [0, left, right, 0]
    following = {(11, 12, EdgeKind.SUCCESSOR), (12, 11, EdgeKind.PREDECESSOR)}
    assert named_edges(scene) == following | {(11, 13, EdgeKind.LEFT), (13, 11, EdgeKind.RIGHT)}
    expected = np.array([(-50, 0), (-20, 0), (0, 0)]) + CITY_XY  # the repeated point is gone
    assert_near(scene.polyline(0) + scene.origin, expected, 1e-4)


@pytest.mark.parametrize("folder", ["raw/train/map_files", "map_files"])
def test_maps_in_a_split_or_next_to_the_raw_folder(tmp_path: Path, folder: str) -> None:
    fixtures.write_argoverse1_map(tmp_path / folder)
    assert read(tmp_path / "raw", argoverse1_tracks()).num_polylines == 4


def test_splits_and_inputs(raw: Path) -> None:
    fixtures.argoverse1_folder(raw, sequences=11)
    (raw / "empty" / "data").mkdir(parents=True)
    reader = Argoverse1()
    assert reader.splits(raw) == ["test_obs", "train"]
    names = [item.path.stem for item in reader.inputs(raw, "train")]
    assert names == [str(number) for number in range(1, 12)]


@pytest.fixture(scope="session")
def sample(unpack: Callable[..., Path]) -> Path:
    """Some sequences of val and test_obs."""
    return unpack("argoverse1", "--split", "val", "test_obs", "--limit", "25")


@pytest.mark.parametrize("split", ["val", "test_obs"])
def test_real_rows_are_kept(sample: Path, split: str) -> None:
    reader = Argoverse1()
    for path, *_ in reader.inputs(sample, split):
        scene = reader.read(Input(path), split, sample).validate()
        rows = list(csv.DictReader(path.open()))
        times = sorted({float(row["TIMESTAMP"]) for row in rows})
        index = np.array([agent(scene, row["TRACK_ID"]) for row in rows])
        step = np.array([times.index(float(row["TIMESTAMP"])) for row in rows])
        xy = np.array([[float(row["X"]), float(row["Y"])] for row in rows])
        assert scene.valid.sum() == len(rows)
        assert_near(in_city(scene)[index, step], xy, 1e-3)
        focal = {row["TRACK_ID"] for row in rows if row["OBJECT_TYPE"] == "AGENT"}
        assert with_role(scene, AgentRole.FOCAL) == focal


def read_xml(
    path: Path,
) -> tuple[dict[str, tuple[float, float]], dict[int, ElementTree.Element]]:
    """Nodes by id, and ways by lane id, of a vector map."""
    root = ElementTree.parse(path).getroot()
    nodes = {}
    for node in root.iter("node"):
        nodes[node.get("id")] = (float(node.get("x")), float(node.get("y")))
    ways = {int(way.get("lane_id")): way for way in root.iter("way")}
    return nodes, ways


def test_real_lanes_equal_the_xml(sample: Path) -> None:
    reader = Argoverse1()
    link = {"successor": EdgeKind.SUCCESSOR, "predecessor": EdgeKind.PREDECESSOR}
    maps = {}
    for path in (sample / "map_files").glob("*.xml"):
        city = path.name.split("_")[2]
        maps[city] = read_xml(path)
    for path, *_ in reader.inputs(sample, "val")[:10]:
        scene = reader.read(Input(path), "val", sample)
        nodes, ways = maps[scene.city]
        focal = int(scene.agent_role.argmax())
        observed = scene.position[focal, :H]
        kept = scene.polyline_id.tolist()
        near = set()
        for lane_id, way in ways.items():
            line = np.array([nodes[nd.get("ref")] for nd in way.iter("nd")]) - scene.origin
            if lane_id in kept:
                moves = (np.diff(line, axis=0) != 0).any(1)
                line = line[np.append(True, moves)]  # without repeated points
                assert_near(scene.polyline(kept.index(lane_id)), line, 1e-3)
            if np.linalg.norm(line[:, None] - observed, axis=-1).min() < 100.0:
                near.add(lane_id)
        assert near <= set(kept)
        expected = set()
        for lane_id in kept:
            for tag in ways[lane_id].iter("tag"):
                name = tag.get("k")
                value = tag.get("v")
                if name in link and int(value) in kept:
                    expected.add((lane_id, int(value), link[name]))
        assert named_edges(scene) == expected
