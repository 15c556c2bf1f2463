"""The Waymo reader: a small record, equality with the protobuf package, real recordings."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import waymo
from support.waymo import CAR, CROSSWALK, EDGE, LANE_A, LANE_B, LINE, WALKER

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.reader import Input
from data_prep.readers.thinning import thin_polylines
from data_prep.readers.waymo.features import ENTRIES, EXITS, LEFT, RIGHT
from data_prep.readers.waymo.lane_details import lane_details
from data_prep.readers.waymo.reader import Waymo
from data_prep.readers.waymo.record import (
    Record,
    parse_record,
    read_record,
)
from data_prep.readers.waymo.tfrecord import list_records
from data_prep.readers.waymo.tfrecord import read_record as read_content
from trajformer.errors import ConfigError, SceneError
from trajformer.scenes import wire
from trajformer.scenes.scene import (
    AgentKind,
    AgentRole,
    EdgeKind,
    LaneFlag,
    LightState,
    PolylineKind,
    Scene,
    scenes_equal,
)
from trajformer.scenes.store import SceneStore
from trajformer.testing.readers import check_round_trip


def read(content: bytes, folder: Path, reader: Waymo = Waymo()) -> Scene:
    """The scene of a record in a separate file."""
    path = folder / "training" / "a.tfrecord"
    waymo.write(path, content)
    [item] = reader.inputs(folder, "training")
    return reader.read(item, "training", folder).validate()


def test_tracks_map_and_lights_of_a_record(tmp_path: Path) -> None:
    scene = read(waymo.scenario(), tmp_path)
    assert (scene.scene_id, scene.source, scene.split) == ("scene", "waymo", "training")
    assert (scene.period_s, scene.num_history, scene.num_future) == (0.1, 11, 80)
    # The car that appears after the present is left out.
    assert scene.agent_id == (str(CAR), "AV", str(WALKER))
    assert scene.agent_kind.tolist() == [
        AgentKind.VEHICLE,
        AgentKind.VEHICLE,
        AgentKind.PEDESTRIAN,
    ]
    roles = [AgentRole.SCORED, AgentRole.CONTEXT, AgentRole.SCORED]
    assert scene.agent_role.tolist() == roles
    np.testing.assert_allclose(scene.origin, waymo.CORNER[:2] - np.array([4.0, 0.0]))  # the ego car
    car = scene.position[0] + scene.origin
    expected = waymo.CORNER[0] - 15.0 + 0.2 * np.arange(91)
    np.testing.assert_allclose(car[:, 0], expected, atol=1e-3)
    np.testing.assert_array_equal(np.flatnonzero(scene.valid[2]), np.arange(3, 60))
    np.testing.assert_allclose(scene.velocity[2, 10], [0.0, 1.0])
    np.testing.assert_allclose(scene.heading[2, 10], np.pi / 2, rtol=1e-6)
    np.testing.assert_allclose(scene.agent_size, [[4.5, 2.0]] * 3)

    kinds = dict(zip(scene.polyline_id.tolist(), scene.polyline_kind.tolist(), strict=True))
    assert kinds == {
        LANE_A: PolylineKind.LANE_VEHICLE,
        LANE_B: PolylineKind.LANE_BIKE,
        EDGE: PolylineKind.ROAD_EDGE,
        LINE: PolylineKind.ROAD_LINE,
        CROSSWALK: PolylineKind.CROSSWALK,
    }
    index = {number: row for row, number in enumerate(scene.polyline_id.tolist())}
    flags = scene.polyline_flags
    assert (flags[index[LANE_A]], flags[index[LANE_B]]) == (0, LaneFlag.TRAFFIC_CONTROL)
    crosswalk = scene.polyline(index[CROSSWALK])
    np.testing.assert_array_equal(crosswalk[0], crosswalk[-1])  # closed
    ends = map(tuple, scene.edge.T.tolist())
    edges = {(*pair, kind) for pair, kind in zip(ends, scene.edge_kind.tolist(), strict=True)}
    a, b = index[LANE_A], index[LANE_B]
    assert edges == {
        (a, b, EdgeKind.SUCCESSOR),
        (b, a, EdgeKind.PREDECESSOR),
        (b, a, EdgeKind.LEFT),
    }
    assert scene.light_lane.tolist() == [a]  # the other lane is not in the map
    states = [LightState.RED] * 8 + [LightState.GREEN] * 83
    assert scene.light_state.tolist() == [states]


def test_options_choose_the_scored_agents(tmp_path: Path) -> None:
    content = waymo.scenario(predict=(1,))
    listed = read(content, tmp_path)
    assert listed.agent_role.tolist() == [AgentRole.CONTEXT, AgentRole.FOCAL, AgentRole.CONTEXT]
    assert listed.agent_id[1] == str(waymo.EGO)  # submissions need its number
    interest = read(content, tmp_path, Waymo(scored="interest"))
    assert interest.agent_role.tolist() == [AgentRole.SCORED, AgentRole.CONTEXT, AgentRole.SCORED]
    every = read(content, tmp_path, Waymo(scored="all"))
    assert every.agent_role.tolist() == interest.agent_role.tolist()
    none = read(waymo.scenario(predict=()), tmp_path)
    assert not none.agent_role.any()


def test_a_record_of_the_observed_steps_has_no_future(tmp_path: Path) -> None:
    scene = read(waymo.scenario(steps=11), tmp_path)
    assert (scene.num_steps, scene.num_history, scene.num_future) == (11, 11, 80)


def test_a_long_record_is_cut_into_windows(tmp_path: Path) -> None:
    path = tmp_path / "training_20s" / "a.tfrecord"
    waymo.write(path, waymo.scenario(steps=120), waymo.scenario("other", steps=91))
    reader = Waymo(window_s=1.0)
    items = reader.inputs(tmp_path, "training_20s")
    offsets = list(list_records(path))
    parts = [f"{offsets[0]}+{start:03d}" for start in (0, 10, 20)] + [f"{offsets[1]}+000"]
    assert [item.part for item in items] == parts
    windows = [reader.read(item, "training_20s", tmp_path).validate() for item in items]
    assert [scene.scene_id for scene in windows] == [
        "scene-000",
        "scene-010",
        "scene-020",
        "other-000",
    ]
    np.testing.assert_allclose(windows[1].origin - windows[0].origin, [1.0, 0.0])
    # Without windows a scene has the present of the record.
    whole = Waymo().read(Input(path, str(offsets[0])), "training_20s", tmp_path)
    assert whole.num_steps == 91
    np.testing.assert_array_equal(whole.origin, windows[0].origin)
    # The present of a published record of 20 s is its first step.
    first = waymo.scenario(steps=120) + wire.write_number(10, 0)
    with pytest.raises(SceneError, match=r"current_time_index 0\).*with --window-s$"):
        read(first, tmp_path)
    with pytest.raises(ConfigError, match=r"^window_s: 0\.25 s"):
        Waymo(window_s=0.25)


def without(content: bytes, number: int) -> bytes:
    """The message without a field."""
    start = 0
    parts = []
    for field in wire.read_fields(content, 0, len(content)):
        if field[0] != number:
            parts.append(content[start : field[3]])
        start = field[3]
    return b"".join(parts)


LATE_TRACK = waymo.track(1, 1, (0.0, 0.0), (1.0, 0.0), seen=range(20, 91))
BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no timestamps": (lambda data: without(data, 1), "0 timestamps_seconds"),
    "no tracks": (lambda data: without(data, 2), "0 tracks"),
    "a missing state": (
        lambda data: data + wire.write_double(1, 9.1),
        r"tracks\[0\]: 91 states for 92 timestamps",
    ),
    "a number of 64 bits as a track": (
        lambda data: data + wire.write_number(2, 2**64 - 1),
        "field 2: wire type 0, expected a message",
    ),
    "a number of 64 bits as a light": (
        lambda data: data + wire.write_number(7, 2**64 - 1),
        "field 7: wire type 0, expected a message",
    ),
    "a number of 64 bits as a lane": (
        lambda data: data + wire.write_number(8, 2**64 - 1),
        "field 8: wire type 0, expected a message",
    ),
    "another clock": (lambda data: without(data, 1) + clock(0.5), "0.5 s"),
    "a truncated message": (lambda data: data[:-1], "truncated"),
    "a track that does not exist": (
        lambda data: data + wire.write_bytes(11, wire.write_number(1, 99)),
        "tracks_to_predict: track_index 99, there are 4 tracks",
    ),
    "no name": (lambda data: without(data, 5), "scenario_id: '', expected a name"),
    "a binary name": (
        lambda data: data + wire.write_bytes(5, bytes(300)),
        r"scenario_id: '\\x00.*, expected a name",
    ),
    "no ego car": (lambda data: data + wire.write_number(6, 99), "sdc_track_index: 99"),
    "no agent in the history": (
        lambda data: without(data, 2) + 3 * wire.write_bytes(2, LATE_TRACK),
        "tracks: states: no agent is seen in the 11 observed steps",
    ),
    "the present at the end": (lambda data: data + wire.write_number(10, 60), "91 steps"),
    "a far point": (
        lambda data: (
            data
            + wire.write_bytes(
                8, wire.write_bytes(5, wire.write_bytes(2, wire.write_double(1, 1e12)))
            )
        ),
        "map_features: a point is NaN or over",
    ),
}


def clock(period: float) -> bytes:
    return b"".join(wire.write_double(1, period * step) for step in range(waymo.STEPS))


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_record_is_refused_with_its_place(tmp_path: Path, case: str) -> None:
    change, message = BROKEN[case]
    with pytest.raises(SceneError, match=rf"a\.tfrecord: record at byte 0: .*{message}"):
        read(change(waymo.scenario()), tmp_path)


def lights(steps: int, number: int) -> bytes:
    """States of the light of a lane."""
    return b"".join(wire.write_bytes(7, waymo.light(LANE_A, number)) for _ in range(steps))


@pytest.mark.parametrize("steps", [11, 40, 150])
def test_lights_may_have_fewer_or_more_steps_than_tracks(tmp_path: Path, steps: int) -> None:
    scene = read(without(waymo.scenario(), 7) + lights(steps, 6), tmp_path)
    assert scene.light_state.shape == (1, 91)
    assert (scene.light_state[0, :steps] == LightState.GREEN).all()
    assert not scene.light_state[0, steps:].any()


def test_a_light_state_of_a_later_version_is_unknown(tmp_path: Path) -> None:
    content = without(waymo.scenario(), 7)
    for number in (9, 77, 300):
        assert not read(content + lights(91, number), tmp_path).light_state.any()


def test_ids_above_32_bits_and_unknown_kinds_of_features_are_read(tmp_path: Path) -> None:
    content = without(waymo.scenario(), 8)
    for index, feature in enumerate(waymo.features()):
        content += wire.write_bytes(8, wire.write_number(1, 2**40 + index) + feature[2:])
    content += wire.write_bytes(8, wire.write_number(1, 5) + wire.write_bytes(12, b"abc"))
    scene = read(content, tmp_path)
    assert sorted(scene.polyline_id.tolist()) == [2**40 + index for index in range(5)]
    assert len(scene.light_lane) == 0  # of a lane that does not exist any more


def test_a_record_without_map_and_lights_is_a_scene(tmp_path: Path) -> None:
    scene = read(without(without(waymo.scenario(), 8), 7), tmp_path)
    assert (scene.num_agents, scene.num_polylines, len(scene.light_lane)) == (3, 0, 0)


def test_other_layouts_of_messages_give_the_same_scene(tmp_path: Path) -> None:
    """Fields in another order, unknown fields and omitted defaults."""
    content = waymo.scenario()
    plain = read(content, tmp_path)
    fields = wire.read_fields(content, 0, len(content))
    spans = [0, *(field[3] for field in fields)]
    parts = [content[a:b] for a, b in pairwise(spans)]
    order = sorted(range(len(parts)), key=lambda index: -fields[index][0])
    reordered = [_reversed(parts[index], fields[index]) for index in order]
    unknown = wire.write_bytes(900, b"new") + wire.write_number(77, 5)
    other = read(unknown + b"".join(reordered), tmp_path)
    assert scenes_equal(other, plain)


def _reversed(part: bytes, field: wire.Field) -> bytes:
    """A track with the fields of each state in reverse order, other fields unchanged."""
    if field[0] != 2:
        return part
    track = part[-(field[3] - field[2]) :]
    parts = []
    start = 0
    for inner in wire.read_fields(track, 0, len(track)):
        whole = track[start : inner[3]]
        if inner[0] == 3:
            state = track[inner[2] : inner[3]]
            bounds = [0, *(each[3] for each in wire.read_fields(state, 0, len(state)))]
            pieces = [state[a:b] for a, b in pairwise(bounds)]
            whole = wire.write_bytes(3, b"".join(reversed(pieces)))
        parts.append(whole)
        start = inner[3]
    return wire.write_bytes(2, b"".join(parts))


def test_lines_are_thinned_independently() -> None:
    # Lengths around powers of two, where pairs of segments could reach into the next line.
    lengths = np.array([2, 1, 3, 16, 17, 31, 32, 33, 34, 2, 64, 65, 66])
    offset = np.append(0, lengths.cumsum())
    x = np.arange(offset[-1]) * 0.5  # each line continues the one before
    y = np.random.default_rng(0).normal(0.0, 0.01, len(x))
    alone = []
    for start, end in pairwise(offset.tolist()):
        kept = thin_polylines(x[start:end], y[start:end], np.array([0, end - start]), 0.05)
        assert kept[0] == 0 and kept[-1] == end - start - 1
        alone += (start + kept).tolist()
    assert thin_polylines(x, y, offset, 0.05).tolist() == alone


def test_thinned_lines_stay_within_the_tolerance() -> None:
    angle = np.linspace(0.0, 3.0, 200)
    curve = 20.0 * np.stack([np.cos(angle), np.sin(angle)], -1)
    straight = np.stack([np.linspace(0.0, 50.0, 101), np.zeros(101)], -1)
    hairpin = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 0.0], [5.0, 0.0], [0.1, 0.0]])
    point = np.concatenate([curve, straight, hairpin])
    offset = np.cumsum([0, len(curve), len(straight), len(hairpin)])
    keep = np.zeros(len(point), bool)
    keep[thin_polylines(point[:, 0], point[:, 1], offset, 0.05)] = True
    parts = [keep[a:b] for a, b in pairwise(offset)]
    assert all(part[0] and part[-1] for part in parts)
    assert parts[0].sum() < 60
    assert parts[1].sum() <= 6
    assert parts[2].all()
    kept = np.flatnonzero(parts[0])
    for first, last in pairwise(kept):
        chord = curve[last] - curve[first]
        inner = curve[first : last + 1] - curve[first]
        across = inner[:, 0] * chord[1] - inner[:, 1] * chord[0]
        assert np.abs(across).max() <= 0.05 * np.hypot(*chord) + 1e-9


# ---- the protobuf package ------------------------------------------------------------------------


def check_equal(record: Record, content: bytes) -> None:
    """Every field of a record equals the message that the protobuf package reads."""
    pytest.importorskip("google.protobuf")
    message = waymo.scenario_class().FromString(content)
    assert record.scenario_id == message.scenario_id
    np.testing.assert_array_equal(record.time, message.timestamps_seconds)
    assert (record.current, record.ego) == (message.current_time_index, message.sdc_track_index)
    assert record.interest == list(message.objects_of_interest)
    predict = [(each.track_index, each.difficulty) for each in message.tracks_to_predict]
    assert record.predict == predict
    check_tracks(record, message)
    check_map(record, message)
    lights = []
    for step, states in enumerate(message.dynamic_map_states):
        for each in states.lane_states:
            stop = each.stop_point
            lights.append((step, each.lane, each.state, stop.x, stop.y, stop.z))
    ours = np.column_stack(
        [record.light_step, record.light_lane, record.light_state, record.light_point]
    )
    np.testing.assert_array_equal(ours, np.reshape(lights, (-1, 6)))


def check_tracks(record: Record, message: Any) -> None:
    assert record.track_id == [track.id for track in message.tracks]
    assert record.track_type.tolist() == [track.object_type for track in message.tracks]
    states = [list(track.states) for track in message.tracks]
    valid = np.array([[state.valid for state in row] for row in states])
    np.testing.assert_array_equal(record.valid, valid)
    groups = {
        "position": ("center_x", "center_y", "center_z"),
        "size": ("length", "width", "height"),
        "heading": ("heading",),
        "velocity": ("velocity_x", "velocity_y"),
    }
    for field, names in groups.items():
        rows = [[[getattr(state, name) for name in names] for state in row] for row in states]
        values = np.array(rows) * valid[..., None]
        ours = getattr(record, field).reshape(values.shape)
        np.testing.assert_array_equal(ours, values, err_msg=field)


def check_map(record: Record, message: Any) -> None:
    names = {3: "lane", 4: "road_line", 5: "road_edge", 7: "stop_sign", 8: "crosswalk"}
    names |= {9: "speed_bump", 10: "driveway"}
    features = message.map_features
    assert record.feature_id.tolist() == [feature.id for feature in features]
    stop_lanes = []
    for index, feature in enumerate(features):
        kind = record.feature_kind[index]
        inner = getattr(feature, names[kind])
        assert feature.HasField(names[kind])
        points = getattr(inner, "polyline", None) or getattr(inner, "polygon", None)
        if kind == 7:
            points = [inner.position]
            stop_lanes += list(inner.lane)
        start, end = record.feature_offset[index : index + 2]
        rows = [(point.x, point.y, point.z) for point in points or []]
        np.testing.assert_array_equal(record.point[start:end], np.reshape(rows, (-1, 3)))
        if kind in (3, 4, 5):
            assert record.feature_type[index] == inner.type
        if kind == 3:
            check_lane(record, index, inner)
    assert record.stop_lanes.tolist() == stop_lanes


def check_lane(record: Record, index: int, inner: Any) -> None:
    links = record.links
    lane_ids = {}
    for field in (ENTRIES, EXITS, LEFT, RIGHT):
        is_field = (links.feature == index) & (links.kind == field)
        lane_ids[field] = links.lane_id[is_field].tolist()
    assert lane_ids[ENTRIES] == list(inner.entry_lanes)
    assert lane_ids[EXITS] == list(inner.exit_lanes)
    assert record.interpolating[index] == inner.interpolating
    details = lane_details(record, index)
    if inner.HasField("speed_limit_mph"):
        assert details.speed_limit_mph == inner.speed_limit_mph
    for side, field in (("left", LEFT), ("right", RIGHT)):
        neighbors = [
            tuple(getattr(each, name) for name in waymo.MESSAGES["Neighbor"])
            for each in getattr(inner, f"{side}_neighbors")
        ]
        assert getattr(details, f"{side}_neighbors") == neighbors
        assert lane_ids[field] == [each[0] for each in neighbors]
        boundaries = [
            tuple(getattr(each, name) for name in waymo.MESSAGES["Boundary"])
            for each in getattr(inner, f"{side}_boundaries")
        ]
        assert getattr(details, f"{side}_boundaries") == boundaries


def test_a_small_record_equals_the_protobuf_package() -> None:
    content = waymo.scenario()
    check_equal(parse_record(content, Path("small")), content)


# ---- real recordings -----------------------------------------------------------------------------


def test_the_official_record_equals_the_protobuf_package(real_data: Path) -> None:
    path = real_data / "waymo" / "official" / "motion_data_one_scenario.tfrecord"
    record = read_record(path, 0)
    counts = (len(record.track_id), len(record.feature_id), len(record.predict), len(record.time))
    assert counts == (83, 301, 3, 91)
    check_equal(record, read_content(path, 0))


def test_packed_scenes_are_read_with_the_known_errors(
    unpack: Callable[..., Path], tmp_path: Path
) -> None:
    """The errors of a constant velocity at 3, 5 and 8 s are 3.4, 8.3 and 18.0 m on all scenes."""
    raw = unpack("waymo", "--limit", "8")
    summary = prepare(Waymo(), raw, tmp_path / "store", PrepareOptions(progress=False))
    assert sum(split.scenes for split in summary.splits) == 8
    path = next((raw / "training").iterdir())
    check_equal(read_record(path, 0), read_content(path, 0))
    errors: list[list[float]] = []
    for split in summary.splits:
        scenes = list(SceneStore(tmp_path / "store", split.split))
        check_round_trip(scenes, tmp_path)
        for scene in scenes:
            errors += _constant_velocity_errors(scene)
    mean = np.nanmean(np.array(errors), 0)
    assert len(errors) >= 10
    assert (np.abs(mean - [3.4, 8.3, 18.0]) < [2.5, 6.0, 12.0]).all()


def _constant_velocity_errors(scene: Scene) -> list[list[float]]:
    """Errors of the scored agents at 3, 5 and 8 s, NaN where they are not recorded."""
    now = scene.num_history - 1
    rows = []
    for agent in np.flatnonzero(scene.agent_role >= AgentRole.SCORED):
        row = []
        for steps in (30, 50, 80):
            end = scene.position[agent, now] + 0.1 * steps * scene.velocity[agent, now]
            error = float(np.hypot(*(end - scene.position[agent, now + steps])))
            row.append(error if scene.valid[agent, now + steps] else np.nan)
        rows.append(row)
    return rows
