"""The Argoverse 1 reader: layout, estimated motion and its causality, lanes, broken files, and the real sample."""

import csv
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import fixtures
from support.fixtures import CITY_XY, Track, argoverse1_rows, argoverse1_tracks, straight
from support.scenes import agent, assert_same_history, assert_same_steps, named_edges, with_role

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
    assert (scene.scene_id, scene.source, scene.split, scene.city) == (
        "7",
        "argoverse1",
        "train",
        "PIT",
    )
    assert (scene.num_history, scene.num_future, scene.num_steps, scene.period_s) == (
        20,
        30,
        50,
        0.1,
    )
    assert scene.agent_id == tuple(track.name for track in tracks)
    assert scene.agent_kind.tolist() == [AgentKind.VEHICLE] * 2 + [AgentKind.UNKNOWN] * 6
    assert scene.agent_role.tolist() == [AgentRole.FOCAL] + [AgentRole.CONTEXT] * 7
    assert np.array_equal(scene.origin, tracks[0].positions[H - 1])
    for index, track in enumerate(tracks):
        span = slice(track.start, track.start + len(track.positions))
        assert scene.valid[index].sum() == len(track.positions)
        assert scene.valid[index, span].all()
        assert np.abs(scene.position[index, span] + scene.origin - track.positions).max() < 1e-4


def test_estimates_follow_straight_motion_and_a_turn(raw: Path) -> None:
    angle = 0.03 * np.arange(50)  # 0.3 rad/s on a circle of 30 m: 9 m/s
    circle = CITY_XY + 30.0 * np.stack([np.sin(angle), -np.cos(angle)], -1)
    noise = np.random.default_rng(1).normal(0, 0.05, circle.shape)
    tracks = [
        Track("x", "OTHERS", circle + noise),
        Track("y", "OTHERS", straight(50, (0, 40), (-3.0, 4.0))),
    ]
    rows = argoverse1_rows([*argoverse1_tracks(), *tracks])
    scene = read(raw, rows)
    x, y = agent(scene, "x"), agent(scene, "y")
    assert np.abs(scene.heading[x, 10:] - angle[10:]).max() < np.radians(6)
    assert np.abs(np.hypot(*scene.velocity[x, 10:].T) - 9.0).max() < 1.0
    assert np.abs(scene.velocity[y] - (-3.0, 4.0)).max() < 0.02  # from the first step on
    assert np.abs(scene.heading[y] - np.arctan2(4, -3)).max() < 1e-3
    late = [
        [f"{(float(row[0]) - 315971499.0) ** 2:.6f}", *row[1:]] for row in reversed(rows)
    ]  # a step is a rank of a timestamp
    assert np.array_equal(read(raw, late).position, scene.position)


def test_standing_agents_face_along_their_lane_and_stopping_ones_keep_their_heading(
    raw: Path,
) -> None:
    speed = np.maximum(
        0.0, 6.0 - 0.3 * np.arange(50)
    )  # brakes with 3 m/s^2 until it stops at step 20
    stopped = straight(50, (3, 40), (0.0, 0.0)) + 0.1 * np.cumsum(speed)[:, None] * (0.0, 1.0)
    scene = read(raw, [*argoverse1_tracks(), Track("x", "OTHERS", stopped)])
    parked, off_lane = agent(scene, "02-parked"), agent(scene, "03-off-lane")
    assert np.allclose(
        scene.heading[parked], np.pi
    )  # lane 13 points to -x and is half a metre away
    assert not scene.heading[off_lane].any() and not scene.velocity[[parked, off_lane]].any()
    assert np.allclose(scene.heading[agent(scene, "x")], np.pi / 2, atol=1e-3)


def test_the_history_does_not_depend_on_the_future(raw: Path) -> None:
    tracks = argoverse1_tracks()
    scene = read(raw, tracks)
    known = [
        Track(t.name, t.kind, t.positions[: max(0, H - t.start)].copy(), t.start)
        for t in tracks
        if t.start < H
    ]
    for track in tracks:
        track.positions[max(0, H - track.start) :] = CITY_XY + np.random.default_rng(2).normal(
            0, 50, 2
        )
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
    assert scene.polyline_id.tolist() == [
        11,
        12,
        13,
        14,
    ]  # 15 is 300 m from the observed path; of 14 only the middle is near
    assert not scene.polyline_kind.any()
    left, right = (
        LaneFlag.TURN_LEFT | LaneFlag.INTERSECTION,
        LaneFlag.TURN_RIGHT | LaneFlag.TRAFFIC_CONTROL,
    )
    assert scene.polyline_flags.tolist() == [0, left, right, 0]
    following = {(11, 12, EdgeKind.SUCCESSOR), (12, 11, EdgeKind.PREDECESSOR)}
    assert named_edges(scene) == following | {(11, 13, EdgeKind.LEFT), (13, 11, EdgeKind.RIGHT)}
    expected = np.array([(-50, 0), (-20, 0), (0, 0)]) + CITY_XY  # the repeated point is gone
    assert np.abs(scene.polyline(0) + scene.origin - expected).max() < 1e-4


@pytest.mark.parametrize("folder", ["raw/train/map_files", "map_files"])
def test_maps_in_a_split_or_next_to_the_raw_folder(tmp_path: Path, folder: str) -> None:
    fixtures.write_argoverse1_map(tmp_path / folder)
    assert read(tmp_path / "raw", argoverse1_tracks()).num_polylines == 4


def test_splits_and_inputs(raw: Path) -> None:
    fixtures.argoverse1_folder(raw, sequences=11)
    (raw / "empty" / "data").mkdir(parents=True)
    reader = Argoverse1()
    assert reader.splits(raw) == ["test_obs", "train"]
    assert [item.path.stem for item in reader.inputs(raw, "train")] == [
        str(number) for number in range(1, 12)
    ]


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
        place = {
            time: step
            for step, time in enumerate(sorted({float(row["TIMESTAMP"]) for row in rows}))
        }
        index = np.array([agent(scene, row["TRACK_ID"]) for row in rows])
        step = np.array([place[float(row["TIMESTAMP"])] for row in rows])
        xy = np.array([[float(row["X"]), float(row["Y"])] for row in rows])
        assert scene.valid.sum() == len(rows)
        assert np.abs(scene.position[index, step] + scene.origin - xy).max() < 1e-3
        focal = {row["TRACK_ID"] for row in rows if row["OBJECT_TYPE"] == "AGENT"}
        assert with_role(scene, AgentRole.FOCAL) == focal


def test_real_lanes_equal_the_xml(sample: Path) -> None:
    reader = Argoverse1()
    trees = {
        p.name.split("_")[2]: ElementTree.parse(p).getroot()
        for p in (sample / "map_files").glob("*.xml")
    }
    nodes = {
        c: {n.get("id"): (float(n.get("x")), float(n.get("y"))) for n in t.iter("node")}
        for c, t in trees.items()
    }
    ways = {c: {int(w.get("lane_id")): w for w in t.iter("way")} for c, t in trees.items()}
    for path, *_ in reader.inputs(sample, "val")[:10]:
        scene = reader.read(Input(path), "val", sample)
        seen, kept = scene.position[int(scene.agent_role.argmax()), :H], scene.polyline_id.tolist()
        city, near = nodes[scene.city], set()
        for lane_id, way in ways[scene.city].items():
            line = np.array([city[nd.get("ref")] for nd in way.iter("nd")]) - scene.origin
            if lane_id in kept:
                line = line[np.append(True, (np.diff(line, axis=0) != 0).any(1))]
                assert np.abs(scene.polyline(kept.index(lane_id)) - line).max() < 1e-3
            if np.linalg.norm(line[:, None] - seen, axis=-1).min() < 100.0:
                near.add(lane_id)
        assert near <= set(kept)
        link, expected = (
            {"successor": EdgeKind.SUCCESSOR, "predecessor": EdgeKind.PREDECESSOR},
            set(),
        )
        for lane_id in kept:
            for tag in ways[scene.city][lane_id].iter("tag"):
                if tag.get("k") in link and int(tag.get("v")) in kept:
                    expected.add((lane_id, int(tag.get("v")), link[tag.get("k")]))
        assert named_edges(scene) == expected
