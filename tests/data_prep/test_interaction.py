"""The INTERACTION reader: windows, cases, roles, lanes, and the real recordings."""

import csv
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import interaction as files
from support.interaction import CORNER, LOCATION, Row, car, traffic, walker
from support.scenes import (
    agent,
    assert_near,
    assert_same_history,
    in_city,
    named_edges,
    with_role,
)

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.reader import Input
from data_prep.readers.interaction.reader import Interaction
from trajformer.errors import SceneError
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.lanelet2 import read_lanelets
from trajformer.scenes.scene import AgentKind, AgentRole, EdgeKind, LaneFlag, PolylineKind, Scene
from trajformer.scenes.vector_map import distance_to_segments

WINDOWS = "recorded_trackfiles"
H = 10


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return files.folder(tmp_path / "raw")


def read_case(raw: Path, rows: list[Row], reader: Interaction | None = None) -> Scene:
    path = files.write_cases(raw / "val" / f"{LOCATION}_val.csv", {7: rows})
    return (reader or Interaction()).read(Input(path, "7"), "val", raw).validate()


def test_a_case_becomes_a_scene(raw: Path) -> None:
    reader = Interaction()
    items = reader.inputs(raw, "val")
    scene = reader.read(items[1], "val", raw).validate()
    names = (scene.scene_id, scene.source, scene.split, scene.city)
    assert names == (f"{LOCATION}-3", "interaction", "val", LOCATION)
    assert (scene.num_history, scene.num_future, scene.num_steps) == (10, 30, 40)
    assert scene.period_s == 0.1
    assert sorted(scene.agent_id) == ["1", "10", "2", "P7"]  # agent 4 is not observed
    for name, frame, kind, x, y, vx, vy, heading, *_ in traffic(40):
        if frame != 10 or name == "4":
            continue
        index = agent(scene, name)
        assert kind == "car"
        assert scene.agent_kind[index] == AgentKind.VEHICLE
        assert scene.agent_role[index] == AgentRole.SCORED
        assert_near(in_city(scene)[index, 9], (x, y), 1e-3)
        assert_near(scene.velocity[index, 9], (vx, vy), 1e-3)
        assert_near(scene.heading[index, 9], float(heading), 1e-4)
    person = agent(scene, "P7")
    assert scene.agent_kind[person] == AgentKind.PEDESTRIAN
    assert scene.agent_role[person] == AgentRole.CONTEXT
    assert_near(scene.heading[person, 4:], math.pi / 2, 1e-3)
    assert not scene.heading[person, 0]
    assert scene.agent_size[agent(scene, "1")].tolist() == [4.5, np.float32(1.8)]
    assert not scene.agent_size[person].any()


def test_windows_of_a_recording(raw: Path) -> None:
    reader = Interaction()
    assert reader.splits(raw) == [WINDOWS, "val"]
    assert [item.part for item in reader.inputs(raw, WINDOWS)] == ["1", "11", "21"]
    scene = reader.read(reader.inputs(raw, WINDOWS)[1], WINDOWS, raw).validate()
    assert scene.scene_id == f"{LOCATION}-000-11"
    assert "P1" in scene.agent_id
    assert_near(in_city(scene)[agent(scene, "1"), 0] - CORNER, (8.8, 0.0), 1e-3)
    longer = Interaction(num_history=20, num_future=30, stride=4)
    assert longer.splits(raw) == [WINDOWS]
    items = longer.inputs(raw, WINDOWS)
    assert [item.part for item in items] == ["1", "5", "9"]
    assert longer.read(items[2], WINDOWS, raw).validate().num_steps == 50


def test_a_window_needs_a_car_at_its_last_observed_and_its_last_step(raw: Path) -> None:
    first = car("1", (0, 0), 8.0, range(1, 46))
    second = car("2", (9, 0), 8.0, range(50, 90))
    files.write_recording(raw / WINDOWS / LOCATION / "vehicle_tracks_000.csv", first + second)
    items = Interaction(stride=5).inputs(raw, WINDOWS)
    assert [item.part for item in items] == ["1", "6", "41", "46"]


def test_locations_are_balanced(raw: Path) -> None:
    other = raw / WINDOWS / "DR_TEST_Other"
    for number in range(3):
        files.write_recording(other / f"vehicle_tracks_{number:03d}.csv", traffic(60))
    items = Interaction(max_windows=4).inputs(raw, WINDOWS)
    chosen = [item.name(raw).removeprefix(f"{WINDOWS}/") for item in items]
    expected = ["000.csv#1", "000.csv#21", "001.csv#11", "002.csv#1"]
    assert chosen[3:] == [f"DR_TEST_Other/vehicle_tracks_{name}" for name in expected]
    assert len(chosen) == 7


@pytest.mark.parametrize(
    ("focal", "expected"), [("none", set()), ("moving", {"1"}), ("farthest", {"3"})]
)
def test_the_focal_vehicle(raw: Path, focal: str, expected: set[str]) -> None:
    early = car("1", (0, 0), 8.0, range(1, 41))
    late = car("3", (0.0, 4.0), 1.0, range(1, 11))
    late += car("3", (-36.0, 4.0), 40.0, range(11, 41))
    reader = Interaction(focal=focal)  # type: ignore[arg-type]
    scene = read_case(raw, early + late, reader)
    assert with_role(scene, AgentRole.FOCAL) == expected


def test_the_history_does_not_depend_on_the_future(raw: Path) -> None:
    rows = traffic(40) + walker("P7", (5.0, 9.0), range(8, 41))
    before = read_case(raw, rows)
    changed = []
    for name, frame, kind, x, y, vx, vy, *box in rows:
        if frame > H:
            x, y, vx, vy = x + 50.0, y - 9.0, 1.0, 1.0
        changed.append((name, frame, kind, x, y, vx, vy, *box))
    after = read_case(raw, changed)
    assert_same_history(before, after)
    assert not np.array_equal(before.position, after.position)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (traffic(39), "frame_id: 39 steps, expected 40 consecutive ones; get the complete case"),
        ([row for row in traffic(40) if row[1] not in range(7, 12)], "frame_id: 35 steps"),
        (
            car("1", (0, 0), 8.0, range(1, 10)) + walker("P", (0, 0), range(1, 41)),
            "agent_type: no vehicle in the last observed",
        ),
    ],
)
def test_an_unusable_case_is_refused(raw: Path, rows: list[Row], reason: str) -> None:
    with pytest.raises(SceneError, match=reason):
        read_case(raw, rows)


def test_a_car_and_a_pedestrian_may_have_one_id(raw: Path) -> None:
    rows = traffic(40)
    alone = read_case(raw, rows + walker("P1", (5.0, 9.0), range(1, 41)))
    shared = read_case(raw, rows + walker("1", (5.0, 9.0), range(1, 41)))
    assert sorted(shared.agent_id) == ["1-pedestrian", "1-vehicle", "10", "2"]
    for name, other in (("1-pedestrian", "P1"), ("1-vehicle", "1"), ("10", "10")):
        index = agent(shared, name)
        expected = agent(alone, other)
        assert np.array_equal(shared.position[index], alone.position[expected])
        assert shared.agent_kind[index] == alone.agent_kind[expected]
        assert shared.agent_role[index] == alone.agent_role[expected]
        assert np.array_equal(shared.agent_size[index], alone.agent_size[expected])


def test_cases_with_bad_rows_or_a_pause_do_not_affect_others(raw: Path) -> None:
    path = files.write_cases(
        raw / "val" / f"{LOCATION}_val.csv", {number: traffic(40) for number in (1, 2, 3, 4)}
    )
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines[1:], 1):
        case, name, frame, stamp, kind, x, *rest = line.split(",")
        if case == "2.0" and name == "1":
            x = "nan"
        if case == "3.0" and int(frame) > 20:
            stamp = str(int(stamp) + 1000)
        if case == "4.0" and name == "2" and frame == "4":
            x = ""
        lines[number] = ",".join([case, name, frame, stamp, kind, x, *rest])
    path.write_text("\n".join(lines) + "\n")
    reader = Interaction()
    first, bad_rows, pause, one_row = reader.inputs(raw, "val")
    whole = reader.read(first, "val", raw).validate()
    with pytest.raises(SceneError, match=r"#2: x: empty, .* \(40 of 129 rows cannot be used\)"):
        reader.read(bad_rows, "val", raw)
    with pytest.raises(SceneError, match=r"#3: timestamp_ms: the clock pauses within the case"):
        reader.read(pause, "val", raw)
    scene = reader.read(one_row, "val", raw).validate()
    index = agent(scene, "2")
    assert np.flatnonzero(whole.valid[index] & ~scene.valid[index]).tolist() == [3]


def test_no_window_reaches_over_a_pause(raw: Path) -> None:
    path = raw / WINDOWS / LOCATION / "vehicle_tracks_000.csv"
    files.write_recording(path, traffic(120))
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines[1:], 1):
        cells = line.split(",")
        if int(cells[1]) > 65:
            cells[2] = str(int(cells[2]) + 1000)
        lines[number] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")
    items = Interaction().inputs(raw, WINDOWS)
    assert [item.part for item in items] == ["1", "11", "21", "71", "81"]


def test_an_unknown_type_is_an_agent_without_size(raw: Path) -> None:
    trams = [
        (name, frame, "tram", *rest) for name, frame, _, *rest in walker("5", (5, 9), range(1, 41))
    ]
    path = files.write_cases(raw / "val" / f"{LOCATION}_val.csv", {7: traffic(40) + trams})
    with collect_dropped() as dropped:
        scene = Interaction().read(Input(path, "7"), "val", raw).validate()
    index = agent(scene, "5")
    assert scene.agent_kind[index] == AgentKind.UNKNOWN
    assert scene.agent_role[index] == AgentRole.CONTEXT
    assert dropped == {(path, "agent_type: unknown value 'tram'"): 1}


def test_signs_of_other_forms_have_no_limit(raw: Path) -> None:
    path = raw / "maps" / f"{LOCATION}.osm_xy"
    path.write_text(path.read_text().replace("25mph", "de274-60"))
    with collect_dropped() as dropped:
        lanelets = read_lanelets(path)
    assert np.isnan(lanelets.speed_limit_m_s).all()
    assert dropped == {}  # limits are no part of a scene


def test_a_short_recording_and_a_missing_map_are_refused(raw: Path) -> None:
    reader = Interaction(num_future=90)
    [item] = reader.inputs(raw, WINDOWS)
    message = r"vehicle_tracks_000.csv: frame_id: no window of 10 \+ 90 steps"
    with pytest.raises(SceneError, match=message):
        reader.read(item, WINDOWS, raw)
    (raw / "maps" / f"{LOCATION}.osm_xy").unlink()
    with pytest.raises(SceneError, match="osm_xy: no such file, expected the map"):
        read_case(raw, traffic(40))


def test_lanelets_become_directed_centerlines(raw: Path) -> None:
    lanelets = read_lanelets(raw / "maps" / f"{LOCATION}.osm_xy")
    scene = read_case(raw, traffic(40))
    lane, area = PolylineKind.LANE_VEHICLE, PolylineKind.DRIVABLE_AREA
    assert scene.polyline_id.tolist() == [100, 101, 102] * 2
    assert scene.polyline_kind.tolist() == [lane] * 3 + [area] * 3
    ends = [((0, 0), (50, 0)), ((50, 0), (90, 0)), ((0, 4), (50, 4))]
    for index, begin_and_end in enumerate(ends):
        line = scene.polyline(index) + scene.origin - CORNER
        assert_near(line[[0, -1]], begin_and_end, 1e-3)
        assert (np.diff(line[:, 0]) > 0).all()
        ring = scene.polyline(index + 3)
        assert (ring[0] == ring[-1]).all()
    following = {(100, 101, EdgeKind.SUCCESSOR), (101, 100, EdgeKind.PREDECESSOR)}
    assert named_edges(scene) == following | {(100, 102, EdgeKind.LEFT), (102, 100, EdgeKind.RIGHT)}
    assert scene.polyline_flags.tolist() == [0, 0, LaneFlag.TRAFFIC_CONTROL, 0, 0, 0]
    assert lanelets.yields_to.tolist() == [[2], [0]]
    assert np.allclose(lanelets.speed_limit_m_s, [11.176, np.nan, 11.176], equal_nan=True)


def test_speed_limits_and_priorities_of_a_scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/results/interaction.md."""
    monkeypatch.chdir(tmp_path)
    reader = Interaction(map_radius_m=10.0)
    raw = files.folder(tmp_path / "RAW")
    options = PrepareOptions(splits=("val",), progress=False)
    prepare(reader, raw, Path("stores/interaction"), options)
    page = (Path(__file__).parents[2] / "docs" / "results" / "interaction.md").read_text(
        encoding="utf-8"
    )
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [example] = [code for code in blocks if "read_lanelets" in code]
    names: dict[str, Any] = {}
    exec(example, names)
    # Not the lane ahead, number 101.
    assert names["scene"].polyline_id.tolist() == [100, 102, 100, 102]
    assert names["limit"] == pytest.approx([11.176] * 4)
    assert names["limit_of"][101] != names["limit_of"][101]  # NaN
    assert names["yields"].tolist() == [[102], [100]]


def test_real_cars_drive_along_the_lanes(interaction_slice: Path) -> None:
    reader = Interaction(focal="farthest")
    directions = []
    for item in reader.inputs(interaction_slice, WINDOWS)[::100]:
        scene = reader.read(item, WINDOWS, interaction_slice)
        focal = int(scene.agent_role.argmax())
        lanes = np.flatnonzero(scene.polyline_kind == PolylineKind.LANE_VEHICLE)
        lines = [scene.polyline(index) for index in lanes]
        start = np.concatenate([line[:-1] for line in lines])
        end = np.concatenate([line[1:] for line in lines])
        known = scene.valid[focal]
        position = scene.position[focal][known].astype(np.float64)
        distance = distance_to_segments(position[:, None], start, end)
        along = (end - start)[distance.argmin(1)]
        lane_heading = np.arctan2(along[:, 1], along[:, 0])
        cos = np.cos(lane_heading - scene.heading[focal, known])
        on_lane = distance.min(1) < 3.0
        directions.append(np.median(cos[on_lane]) if on_lane.any() else 0.0)
    assert np.mean(np.array(directions) > 0.9) > 0.9


def test_boundaries_of_real_maps_are_directed(interaction_slice: Path) -> None:
    folder = interaction_slice / "maps"
    scored = [path.name.removesuffix("_val.csv") for path in (interaction_slice / "val").iterdir()]
    maps = [read_lanelets(folder / f"{name}.osm_xy") for name in scored]
    assert sum(len(part.speed_limit_m_s) for part in maps) == 538
    for path in sorted(folder.glob("*.osm_xy")):
        lanes = read_lanelets(path).lanes
        before, after = lanes.edge[:, lanes.edge_kind == EdgeKind.SUCCESSOR]
        end = lanes.point[lanes.polyline_offset[before + 1] - 1]
        start = lanes.point[lanes.polyline_offset[after]]
        assert_near(start, end, 1e-6)


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open() as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize(("split", "every"), [("val", 1), (WINDOWS, 1000)])
def test_real_rows_are_kept(interaction_slice: Path, split: str, every: int) -> None:
    reader = Interaction()
    for item in reader.inputs(interaction_slice, split)[::every]:
        scene = reader.read(item, split, interaction_slice).validate()
        first = 1 if split == "val" else int(item.part)
        rows = []
        for row in csv_rows(item.path):
            in_part = float(row.get("case_id", item.part)) == float(item.part)
            in_window = 0 <= int(row["frame_id"]) - first < 40
            if in_part and in_window and row["track_id"] in scene.agent_id:
                rows.append(row)
        step = np.array([int(row["frame_id"]) - first for row in rows])
        index = [scene.agent_id.index(row["track_id"]) for row in rows]
        assert scene.valid.sum() == len(rows)
        assert scene.valid[index, step].all()
        xy = np.array([(float(row["x"]), float(row["y"])) for row in rows])
        assert_near(in_city(scene)[index, step], xy, 1e-3)
        heading = np.array([float(row["psi_rad"] or "nan") for row in rows])
        assert np.nanmin(np.cos(scene.heading[index, step] - heading)) > 1 - 1e-6
