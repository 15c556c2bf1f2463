"""The reader of tables: columns, time grids, windows, roles and broken tables."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from support import tables
from support.cli import run
from support.scenes import assert_same_history, make_scene
from support.tables import SMALL, frame, read, read_all, track, two_tracks, write

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.reader import Input
from data_prep.readers.table.reader import Table
from trajformer.errors import ConfigError, SceneError, TrajformerError
from trajformer.scenes.plausibility import check_units
from trajformer.scenes.scene import AgentKind, AgentRole, scenes_equal
from trajformer.scenes.store import SceneStore

Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.mark.parametrize(
    ("with_future", "suffix", "geojson"),
    [(True, ".csv", False), (False, ".csv", True), (True, ".parquet", True)],
)
def test_a_scene_written_as_a_table_is_read_back(
    tmp_path: Path, with_future: bool, suffix: str, geojson: bool
) -> None:
    scene = tables.known_scene(with_future)
    tables.write_lanes(tmp_path / "lanes.json", *tables.lanes_of(scene)["lanes"], geojson=geojson)
    back = read(tmp_path, tables.table_of(scene), name=f"drive{suffix}")
    assert back.num_steps == (10 if with_future else 5)
    assert scenes_equal(tables.with_sorted_edges(back), scene)


def test_id_position_and_time_are_enough(tmp_path: Path) -> None:
    scene = read(tmp_path, two_tracks())
    assert (scene.scene_id, scene.source, scene.split, scene.city) == ("drive", "table", "val", "")
    assert (scene.period_s, scene.num_history, scene.num_future, scene.num_steps) == (0.1, 5, 5, 10)
    assert scene.agent_id == ("a", "b")
    assert scene.agent_kind.tolist() == [AgentKind.UNKNOWN] * 2
    assert scene.agent_role.tolist() == [AgentRole.SCORED] * 2
    assert scene.num_polylines == 0
    assert scene.valid.all()
    assert np.abs(scene.velocity - (5.0, 1.0)).max() < 0.02
    assert np.abs(scene.heading - np.arctan2(1, 5)).max() < 1e-3
    written = two_tracks()[["x", "y"]].to_numpy()[10:]
    assert np.allclose(scene.position[1] + scene.origin, written, atol=1e-5)


def test_given_headings_and_velocities_are_kept_and_empty_ones_estimated(tmp_path: Path) -> None:
    headings = [3.5, -3.5, 6.2, *[-2.0] * 7]
    table = two_tracks(heading=headings, vx=7.0, vy=-3.0)
    table.loc[3, "heading"] = np.nan
    table.loc[4, ["vx", "vy"]] = np.nan
    scene = read(tmp_path, table)
    turn = 2 * np.pi
    wrapped = [3.5 - turn, turn - 3.5, 6.2 - turn]  # to (-pi, pi]
    estimated = np.arctan2(1, 5)
    assert np.allclose(scene.heading[0], [*wrapped, estimated, *[-2.0] * 6], atol=1e-3)
    velocity = np.full((10, 2), (7.0, -3.0))
    velocity[4] = 5.0, 1.0
    assert np.allclose(scene.velocity[0], velocity, atol=0.02)
    assert np.allclose(scene.velocity[1], (7.0, -3.0))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_types_of_columns_do_not_matter(tmp_path: Path, suffix: str) -> None:
    names = ["007", "7", "NA", "nan", "a,b", 'q"x', "é 1", "1.50"]
    table = frame(*(track(name, range(10), kind="bus") for name in names))
    table = table.assign(more="x, y", timestamp=3.3)
    scene = read(tmp_path, table, name=f"drive{suffix}")
    assert scene.agent_id == tuple(sorted(names))
    others = table.assign(
        x=table.x.astype(str),
        step=table.step.astype(np.float32),
        track_id=table.track_id.astype("category"),
    )
    assert scenes_equal(read(tmp_path / "others", others, name=f"drive{suffix}"), scene)
    numbered = two_tracks().replace({"a": 1, "b": 2})
    as_numbers = read(tmp_path / "int64", numbered.astype({"track_id": "int64"}))
    as_text = read(tmp_path / "str", numbered.astype({"track_id": "str"}))
    assert scenes_equal(as_numbers, as_text)


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    scene = tables.known_scene()
    parts = [tables.table_of(scene).assign(scene_id=name) for name in ("one", "two")]
    parts[1].loc[::3, "kind"] = "vehicle"  # a kind may change along a track
    write(tmp_path / "a" / "val" / "drive.csv", frame(*parts))
    write(tmp_path / "b" / "val" / "drive.csv", frame(*parts).sample(frac=1.0, random_state=0))
    first = read_all(tmp_path / "a")
    second = read_all(tmp_path / "b")
    assert list(first) == list(second) == ["one", "two"]
    assert all(scenes_equal(first[name], second[name]) for name in first)


def test_blanks_and_byte_order_marks_are_ignored(tmp_path: Path) -> None:
    lines = [f"car, {step}, {step}.5,0, Vehicle " for step in range(10)]
    text = "\ufefftrack_id, step, x ,y,kind\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    path = write(tmp_path / "val" / "drive.csv", two_tracks())
    path.write_text(text, encoding="utf-8")
    scene = SMALL.read(Input(path), "val", tmp_path)
    assert scene.agent_id == ("car",)
    assert scene.agent_kind.tolist() == [AgentKind.VEHICLE]
    x = scene.position[0, :, 0] + scene.origin[0]
    assert np.allclose(x, np.arange(10) + 0.5)


def test_the_history_does_not_depend_on_the_future(tmp_path: Path) -> None:
    near = {"id": 0, "points": [[0, 0], [50, 0]]}
    far = {"id": 300, "points": [[0, 300], [50, 300]]}
    tables.write_lanes(tmp_path / "lanes.json", near, far)
    late = track("late", range(3, 10), (9.0, 9.0))
    gone = track("gone", range(4), (0.0, 8.0))
    table = frame(two_tracks(kind="vehicle"), late, gone)
    rng = np.random.default_rng(0)
    later = table.step >= 5
    changed = table.copy()
    changed.loc[later, "kind"] = "bus"
    changed.loc[later, ["x", "y"]] = rng.normal((0, 300), 5.0, (later.sum(), 2))
    full = read(tmp_path, table)
    other = read(tmp_path, changed)
    short = read(tmp_path, table[~later])
    assert full.num_steps == 10 and short.num_steps == 5
    assert not np.allclose(full.position[:, 5:], other.position[:, 5:])
    for scene in (other, short):
        assert_same_history(full, scene)
    given = table.assign(heading=0.5, vx=4.0, vy=2.0)
    given_other = given.assign(vx=np.where(later, 9.0, 4.0), heading=np.where(later, -1.0, 0.5))
    assert_same_history(read(tmp_path, given), read(tmp_path, given_other))


def test_kind_and_role_come_from_the_last_observed_row_or_are_defaults(tmp_path: Path) -> None:
    kinds = ["unknown", "", "cyclist", "Pedestrian", "cyclist", *["bus"] * 5]
    roles = ["", "", "", "", "focal", *["context"] * 5]
    focal = track("a", range(10), kind=kinds, role=roles)
    late = track("b", range(7, 10), kind=["bus", "vehicle", "vehicle"], role="scored")
    unknown = track("c", range(10), kind="", role="")
    scene = read(tmp_path, frame(focal, late, unknown))
    assert scene.agent_kind.tolist() == [AgentKind.CYCLIST, AgentKind.BUS, AgentKind.UNKNOWN]
    assert scene.agent_role.tolist() == [AgentRole.FOCAL, AgentRole.SCORED, AgentRole.CONTEXT]


def test_without_roles_agents_seen_in_the_last_second_and_before_are_scored(
    tmp_path: Path,
) -> None:
    table = frame(
        track("all", range(20)),
        track("before and now", [2, 14]),
        track("from now on", range(14, 20)),
        track("lost for a second", range(5)),
        track("past", range(4)),
        track("to come", range(15, 20)),
        track("x cone", range(20), kind="static"),
    )
    scene = read(tmp_path, table, Table(num_history=15, num_future=5))
    assert scene.agent_id == tuple(table.track_id.unique())
    scored = [scene.agent_id[index] for index in np.flatnonzero(scene.agent_role)]
    assert scored == ["all", "before and now", "lost for a second"]
    # At 2.5 Hz, two steps are less than a second and three are more.
    slow = Table(period_s=0.4, num_history=5, num_future=5)
    table = frame(track("a", range(3)), track("b", range(2)), track("c", range(10)))
    assert read(tmp_path / "slow", table, slow).agent_role.tolist() == [1, 0, 1]


def test_the_origin_is_near_the_last_observed_position_of_the_focal_agent(tmp_path: Path) -> None:
    scored = track("a", range(10), role="scored")
    focal = track("b", range(4), (70.0, 0.0), role="focal")
    assert read(tmp_path, frame(scored, focal)).origin.tolist() == [72, 0]


def test_a_focal_agent_that_is_not_observed_gives_no_origin(tmp_path: Path) -> None:
    scored = track("c", range(10), (30.0, 0.0), role="scored")
    late = track("b", range(6, 10), role="focal")
    assert read(tmp_path, frame(scored, late)).origin[0] == 32.0


def test_splits_are_folders_and_files_in_raw_are_the_split_all(tmp_path: Path) -> None:
    for name in (
        "train/a.csv",
        "val/b.parquet",
        "val/.hidden.csv",
        "val/._b.csv",
        "loose.csv",
        "notes/readme.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if name.endswith("txt"):
            (tmp_path / name).write_text("no table")
        else:
            write(tmp_path / name, two_tracks())
    (tmp_path / "val" / "folder.csv").mkdir()
    assert SMALL.splits(tmp_path) == ["all", "train", "val"]
    assert [item.path for item in SMALL.inputs(tmp_path, "val")] == [tmp_path / "val" / "b.parquet"]
    assert [item.path for item in SMALL.inputs(tmp_path, "all")] == [tmp_path / "loose.csv"]
    write(tmp_path / "all" / "own.CSV".lower(), two_tracks())
    assert list(read_all(tmp_path, split="all")) == ["own", "loose"]
    assert SMALL.splits(tmp_path / "notes") == []


def test_a_file_may_hold_several_scenes(tmp_path: Path) -> None:
    parts = [
        two_tracks().assign(scene_id=name, x=lambda t, shift=shift: t.x + shift)
        for shift, name in enumerate("zax")
    ]
    path = write(tmp_path / "val" / "many.csv", frame(*parts))
    assert [item[:2] for item in SMALL.inputs(tmp_path, "val")] == [(path, name) for name in "axz"]
    scenes = read_all(tmp_path)
    assert {name: scene.origin[0] for name, scene in scenes.items()} == {
        "a": 3.0,
        "x": 4.0,
        "z": 2.0,
    }
    assert SMALL.inputs(tmp_path, "val")[0].name(tmp_path) == "val/many.csv#a"


def test_long_scenes_are_cut_into_windows(tmp_path: Path) -> None:
    table = frame(track("a", range(100, 117)), track("b", range(108, 117), (0.0, 9.0)))
    # Estimates depend on earlier rows.
    table = table.assign(heading=0.2, vx=5.0, vy=1.0)
    table["y"] += 0.01 * (table.step - 108) ** 2
    write(tmp_path / "val" / "drive.csv", table)
    scenes = read_all(tmp_path)
    # The last complete window ends at step 116.
    assert list(scenes) == ["drive-t100", "drive-t102", "drive-t104", "drive-t106"]
    for name, scene in scenes.items():
        first = int(name.split("-t")[1])
        alone = read(tmp_path / "alone", table[(table.step >= first) & (table.step < first + 10)])
        assert scene.num_steps == 10 and scenes_equal(scene, replace(alone, scene_id=name))
    assert scenes["drive-t102"].agent_role.tolist() == [AgentRole.SCORED, AgentRole.CONTEXT]
    assert scenes["drive-t106"].agent_role.tolist() == [AgentRole.SCORED, AgentRole.SCORED]
    fewer = read_all(tmp_path, Table(num_history=5, num_future=5, stride=7))
    assert list(fewer) == ["drive-t100", "drive-t107"]


def test_windows_without_an_agent_in_the_last_second_are_left_out(tmp_path: Path) -> None:
    reader = Table(num_history=15, num_future=5, stride=2)
    write(tmp_path / "val" / "drive.csv", track("a", [*range(6), *range(40, 60)]))
    parts = [item.part for item in reader.inputs(tmp_path, "val")]
    # Their last observed steps are 14 (a second after the row of step 5 is 15), 40, 42, ... 54.
    starts = [0, *range(26, 42, 2)]
    assert parts == [f"drive-t{start}" for start in starts]
    write(tmp_path / "val" / "drive.csv", track("a", [0, 1, 2, 3, 500]))
    [item] = reader.inputs(tmp_path, "val")
    reason = r"drive\.csv: no window has an agent in the last second of its history"
    with pytest.raises(SceneError, match=reason):
        reader.read(item, "val", tmp_path)


@pytest.mark.parametrize(("steps", "expected"), [(5, 5), (6, 10), (10, 10)])
def test_history_alone_is_a_test_scene_and_a_future_may_be_short(
    tmp_path: Path, steps: int, expected: int
) -> None:
    scene = read(tmp_path, two_tracks(steps))
    assert scene.num_steps == expected
    assert scene.num_future == 5
    assert scene.valid[:, :steps].all()
    assert not scene.valid[:, steps:].any()


def test_timestamps_are_rounded_to_the_period(tmp_path: Path) -> None:
    jitter = np.random.default_rng(0).uniform(-0.008, 0.008, 20)
    timed = two_tracks().assign(timestamp=lambda t: 1.7e9 + 0.1 * t.step + jitter * (t.step > 0))
    expected = read(tmp_path, two_tracks())
    assert scenes_equal(read(tmp_path, timed.drop(columns="step")), expected)
    late = frame(
        timed.assign(scene_id="one"),
        timed.assign(timestamp=timed.timestamp + 77.77, scene_id="two"),
    )
    write(tmp_path / "late" / "val" / "drive.parquet", late.drop(columns="step"))
    for scene in read_all(tmp_path / "late").values():
        assert np.array_equal(scene.position, expected.position)
    quick = two_tracks().assign(timestamp=lambda t: 0.04 * t.step).drop(columns="step")
    scene = read(tmp_path, quick, Table(period_s=0.04, num_history=5, num_future=5))
    assert scene.period_s == 0.04 and np.allclose(scene.velocity, (12.5, 2.5), atol=0.05)


OTHER_UNITS: dict[str, tuple[Change, dict[str, Any]]] = {  # refused without the options: tests/uses
    "milliseconds": (
        lambda t: t.assign(timestamp=100.0 * t.step).drop(columns="step"),
        {"time_unit": "ms"},
    ),
    "nanoseconds": (
        lambda t: t.assign(timestamp=1e8 * t.step).drop(columns="step"),
        {"time_unit": "ns"},
    ),
    "every tenth frame": (lambda t: t.assign(step=10 * t.step), {"step_interval": 10}),
    "every tenth frame from frame 3": (
        lambda t: t.assign(step=10 * t.step + 3),
        {"step_interval": 10},
    ),
    "duplicates": (lambda t: frame(t, t.assign(x=t.x + 1)), {"drop_duplicates": True}),
}


@pytest.mark.parametrize("case", OTHER_UNITS)
def test_options_read_tables_in_other_units(tmp_path: Path, case: str) -> None:
    change, options = OTHER_UNITS[case]
    expected = read(tmp_path / "plain", two_tracks())
    scene = read(tmp_path / "changed", change(two_tracks()), replace(SMALL, **options))
    assert scenes_equal(scene, expected)


def test_an_agent_that_reappears_has_the_mean_velocity_of_its_absence(tmp_path: Path) -> None:
    steps = np.arange(35)
    absent = (steps > 4) & (steps < 29)  # 24 steps of .1 s; the last observed step is 29
    whole = pd.DataFrame({"track_id": "a", "step": steps, "x": 0.5 * steps, "y": 9.0})
    parts = whole[~absent].assign(track_id="b")
    table = frame(whole, parts)
    scene = read(tmp_path, table, Table(num_history=30, num_future=5))
    assert np.allclose(scene.velocity[1, [3, 29, 30]], (5.0, 0.0), atol=0.01)


def test_single_positions_may_be_far_off() -> None:
    far = make_scene(1, num_history=20, num_future=180)
    position = np.zeros((1, 200, 2), np.float32)
    position[0, :, 0] = 0.5 * np.arange(200)
    position[0, 199] = 900.0
    scene = replace(far, position=position, velocity=np.zeros_like(position))
    check_units(scene, 150.0)
    position[0, 25] = 900.0  # 3 of 199 steps
    with pytest.raises(SceneError, match="99th percentile"):
        check_units(scene, 150.0)


def test_the_error_of_a_timestamp_off_the_grid_names_the_likely_period(tmp_path: Path) -> None:
    quick = two_tracks().assign(timestamp=lambda t: 8.0 + 0.04 * t.step).drop(columns="step")
    reason = r"8\.04 is no multiple of the period of 0\.1 s after .* mostly 0\.04 apart"
    with pytest.raises(SceneError, match=f"timestamp: {reason}"):
        read(tmp_path, quick)


def _cell(column: str, value: object, row: int = 13) -> Change:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        cells = [""] * len(table)
        if column in table:
            cells = list(table[column])
        cells[row] = value
        return table.assign(**{column: pd.Series(cells, dtype=object)})

    return change


BROKEN: dict[str, tuple[Change, str]] = {
    "no track_id": (
        lambda t: t.drop(columns="track_id"),
        "track_id: no such column; its columns are step, x, y",
    ),
    "unprintable name": (
        lambda t: t.rename(columns={"track_id": 240 * "\0"}),
        r"track_id: no such column; its columns are \x00",
    ),
    "no clock": (
        lambda t: t.drop(columns="step"),
        "step (nor timestamp): no such column; its columns are",
    ),
    "two columns": (lambda t: pd.concat([t, t[["x"]]], axis=1), "x: two columns of this name"),
    "no rows": (lambda t: t.iloc[:0], "track_id: no rows"),
    "NaN": (_cell("x", np.nan), "x: empty or NaN (track 'b', step 3)"),
    "far": (
        _cell("x", 1e9),
        "x: 1000000000, expected at most 1e+08 either way (track 'b', step 3)",
    ),
    "too far": (_cell("x", 60_000.0), "position: farther than 50 km"),
    "twice": (
        lambda t: frame(t, t.iloc[[13]]),
        "uses the first row): two rows for step 3 of track 'b'",
    ),
    "no name": (_cell("track_id", ""), "track_id: empty or with a line break"),
    "half a velocity": (
        lambda t: _cell("vx", 1.0)(t.assign(vx="", vy="")),
        "vx: one of vx and vy is empty (track 'b', step 3)",
    ),
    "kind": (
        lambda t: t.assign(kind="tram"),
        "kind: 'tram' (track 'a'), expected one of unknown, vehicle, pedestrian",
    ),
    "role": (
        lambda t: t.assign(role="hero"),
        "role: 'hero' (track 'a'), expected one of context, scored, focal",
    ),
    "two focal": (lambda t: t.assign(role="focal"), "role: two tracks are focal, 'a' and 'b'"),
    "nothing seen twice": (
        lambda t: t[(t.step == 0) | (t.step > 4)],
        "role: no track to predict is seen in the history",
    ),
    "two cities": (lambda t: t.assign(city=t.track_id), "city: 2 cities in one scene"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_error_is_named_and_does_not_affect_other_scenes_of_the_file(
    tmp_path: Path, case: str
) -> None:
    change, message = BROKEN[case]
    path = write(tmp_path / "val" / "drive.csv", change(two_tracks()))
    [item] = SMALL.inputs(tmp_path, "val")
    assert item[:2] == (path, "")
    with pytest.raises(SceneError) as caught:
        SMALL.read(item, "val", tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    if case in ("no track_id", "unprintable name", "no clock", "two columns", "no rows"):
        return  # errors of a complete file
    if case == "nothing seen twice":
        return  # `good` has roles, so that it needs no agent with two observed rows
    good = two_tracks(heading=0.1, vx=5.0, vy=1.0, kind="bus", role="scored", city="here")
    good = good.astype(object)
    write(path, frame(good.assign(scene_id="one"), change(good).assign(scene_id="two")))
    assert [item.part for item in SMALL.inputs(tmp_path, "val")] == ["one", "two"]
    alone = read(tmp_path / "alone", good)
    scene = SMALL.read(Input(path, "one"), "val", tmp_path)
    assert scenes_equal(scene, replace(alone, scene_id="one"))
    with pytest.raises(SceneError) as caught:
        SMALL.read(Input(path, "two"), "val", tmp_path)
    assert str(caught.value).startswith(f"{path}: scene two: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.assign(x=t.x > 1), "x: type bool, expected numbers"),
        (
            lambda t: t.assign(timestamp=pd.Timestamp(0).time()).drop(columns="step"),
            "timestamp: type time64",
        ),
        (lambda t: t.assign(track_id=1.5), "track_id: type double, expected text or whole numbers"),
        (
            lambda t: t.assign(track_id=[None, *t.track_id[1:]]),
            "track_id: empty or with a line break",
        ),
        (lambda t: t.assign(x=[None, *t.x[1:]]), "x: empty or NaN (track 'a', step 0)"),
    ],
)
def test_a_parquet_file_with_the_wrong_types(
    tmp_path: Path, change: Callable[..., pd.DataFrame], message: str
) -> None:
    path = write(tmp_path / "val" / "drive.parquet", change(two_tracks()))
    with pytest.raises(SceneError) as caught:
        SMALL.read(*SMALL.inputs(tmp_path, "val"), "val", tmp_path)
    assert message in str(caught.value)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(SceneError, match=r"drive\.parquet: cannot be read: "):
        SMALL.read(*SMALL.inputs(tmp_path, "val"), "val", tmp_path)


def test_text_columns_may_be_dictionaries_with_missing_values(tmp_path: Path) -> None:
    table = two_tracks(kind=[None, *["bus"] * 9])
    path = write(tmp_path / "val" / "drive.parquet", table)
    arrow = pq.read_table(path)
    index = arrow.column_names.index("kind")
    encoded = arrow["kind"].dictionary_encode()
    pq.write_table(arrow.set_column(index, "kind", encoded), path)
    scene = SMALL.read(*SMALL.inputs(tmp_path, "val"), "val", tmp_path)
    assert scene.agent_kind.tolist() == [AgentKind.BUS] * 2


@pytest.mark.parametrize("name", ["../../evil", "a\\b", "", "a\nb"])
def test_scenes_with_invalid_names_are_skipped(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "raw"
    store = tmp_path / "store"
    table = frame(two_tracks(scene_id=name), two_tracks(scene_id="good"))
    write(raw / "val" / "drive.parquet", table)
    summary = prepare(SMALL, raw, store, PrepareOptions(progress=False))
    [(item, reason)] = summary.skipped
    assert item.startswith("val/drive.parquet#") and item.isprintable()
    assert "scene_id: " in reason and reason.isprintable()
    assert SceneStore(store, "val").scene_ids() == ["good"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw", "store"]


def test_a_distant_step_takes_no_memory(tmp_path: Path) -> None:
    write(tmp_path / "val" / "a.csv", frame(two_tracks(12), track("c", [10**15])))
    names = [item.part for item in SMALL.inputs(tmp_path, "val")]
    assert names == ["a-t0", "a-t2", "a-t4", "a-t6", "a-t8", "a-t10"]


def test_a_scene_with_the_name_of_a_window_is_skipped(tmp_path: Path) -> None:
    table = frame(two_tracks(12, scene_id="s"), two_tracks(scene_id="s-t2"))
    write(tmp_path / "val" / "a.csv", table)
    first, second = SMALL.inputs(tmp_path, "val")
    assert SMALL.read(first, "val", tmp_path).scene_id == "s-t0"
    with pytest.raises(SceneError, match="scene s-t2: scene_id: also the name of a window"):
        SMALL.read(second, "val", tmp_path)


def test_the_command_line_takes_options_and_lists_skipped_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "raw"
    store = tmp_path / "store"
    bad = two_tracks(12, scene_id="bad")
    bad.loc[3, "x"] = np.nan
    write(raw / "val" / "drive.csv", frame(two_tracks(12, scene_id="good"), bad))
    write(raw / "val" / "short.csv", two_tracks(3))
    clock = ("--num-history", 4, "--num-future", 3, "--stride", 4, "--period-s", 0.2)
    assert run("preprocess", "table", raw, store, *clock, "--workers", 1) == 0
    text = capsys.readouterr().out
    assert "val: 3 scenes" in text and "2 skipped" in text
    reason = "val/drive.csv: scene bad-t0: x: empty or NaN (track 'a', step 3)"
    assert f"  skipped val/drive.csv#bad-t0: {reason}" in text
    assert "  skipped val/short.csv: val/short.csv: 3 steps from its first to its last row" in text
    scenes = list(SceneStore(store, "val"))
    assert [scene.scene_id for scene in scenes] == ["bad-t4", "good-t0", "good-t4"]
    for scene in scenes:
        assert (scene.num_history, scene.num_future, scene.period_s) == (4, 3, 0.2)


def test_an_edited_table_or_map_is_prepared_again(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    store = tmp_path / "store"
    for name in ("a", "b"):
        (raw / "val").mkdir(parents=True, exist_ok=True)
        two_tracks().to_csv(raw / "val" / f"{name}.csv", index=False)
    options = PrepareOptions(shard_size=1, progress=False)
    assert prepare(SMALL, raw, store, options).splits[0].kept_shards == 0
    assert prepare(SMALL, raw, store, options).splits[0].kept_shards == 2
    two_tracks(9).to_csv(raw / "val" / "b.csv", index=False)
    assert prepare(SMALL, raw, store, options).splits[0].kept_shards == 1
    (raw / "lanes.json").write_text('{"lanes": [{"id": 1, "points": [[0, 0], [9, 0]]}]}')
    assert prepare(SMALL, raw, store, options).splits[0].kept_shards == 0
    assert SceneStore(store, "val")[0].num_polylines == 1


def test_a_table_of_the_same_name_in_another_folder_does_not_replace_scenes(tmp_path: Path) -> None:
    for folder, steps in (("first", 8), ("second", 9)):
        (tmp_path / folder / "val").mkdir(parents=True)
        two_tracks(steps).to_csv(tmp_path / folder / "val" / "a.csv", index=False)
    store = tmp_path / "store"
    options = PrepareOptions(progress=False)
    prepare(SMALL, tmp_path / "first", store, options)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    assert prepare(SMALL, tmp_path / "copy", store, options).splits[0].kept_shards == 1
    reason = r"store/val: was prepared from table .*/copy, not from .*/second: .*--overwrite"
    with pytest.raises(TrajformerError, match=reason):
        prepare(SMALL, tmp_path / "second", store, options)
    summary = prepare(SMALL, tmp_path / "second", store, replace(options, overwrite=True))
    assert summary.splits[0].kept_shards == 0


def test_units_axes_and_names_of_other_tables(tmp_path: Path) -> None:
    """The same scene, written with image coordinates in feet and compass headings in degrees."""
    plain = tables.two_tracks(heading=0.2, vx=5.0, vy=1.0, length=4.5, width=1.8)
    expected = tables.read(tmp_path / "plain", plain)
    feet = plain.copy()
    for name in ("x", "y", "vx", "vy", "length", "width"):
        feet[name] = feet[name] / 0.3048
    feet["y"] = -feet["y"]
    feet["vy"] = -feet["vy"]
    feet["heading"] = np.rad2deg(np.pi / 2 - feet["heading"])
    other = feet.rename(columns={"x": "xCenter", "track_id": "id"})
    other["x"] = 7.0  # replaced by the other column
    reader = replace(
        tables.SMALL,
        columns="x=xCenter, track_id=id",
        unit="ft",
        angle_unit="deg",
        heading_from="north",
        clockwise=True,
        y_down=True,
    )
    scene = tables.read(tmp_path / "other", other, reader)
    for field in ("position", "velocity", "heading", "agent_size"):
        np.testing.assert_allclose(getattr(scene, field), getattr(expected, field), atol=1e-5)
    np.testing.assert_allclose(scene.agent_size, [[4.5, 1.8]] * 2, rtol=1e-6)


def test_pixels_stay_pixels(tmp_path: Path) -> None:
    scene = tables.read(tmp_path, tables.two_tracks(), replace(tables.SMALL, unit="px"))
    assert scene.unit == "px"


def test_the_preset_of_ngsim(tmp_path: Path) -> None:
    rows = tables.two_tracks()
    feet = {"Local_X": rows["x"] / 0.3048, "Local_Y": rows["y"] / 0.3048}
    columns = {"Vehicle_ID": rows["track_id"].map({"a": 3, "b": 4}), "v_Class": 2, **feet}
    sizes = {"v_Length": 14.5, "v_Width": 6.0}
    time = {"Frame_ID": 12, "Global_Time": 1118846663000 + 100 * rows["step"]}
    table = pd.DataFrame(columns | sizes | time)
    scene = tables.read(tmp_path, table, replace(tables.SMALL, preset="ngsim"))
    assert scene.agent_kind.tolist() == [AgentKind.VEHICLE] * 2
    np.testing.assert_allclose(scene.velocity[0, 4], [5, 1], atol=1e-2)
    np.testing.assert_allclose(scene.agent_size[0], [4.4196, 1.8288], rtol=1e-5)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [("x", "'x', expected NAME=COLUMN"), ("z=a", "'z=a'"), ("x=a,y=a", "used twice")],
)
def test_wrong_names_of_columns_are_refused(columns: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"columns: .*{problem}"):
        replace(tables.SMALL, columns=columns)


def test_a_missing_column_is_named_as_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="vX: no such column"):
        tables.read(tmp_path, tables.two_tracks(), replace(tables.SMALL, columns="vx=vX,vy=vY"))
