"""Clocks of tables: pauses, drift, jitter, several sensors, dates, clocks set back."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.tables import frame, read_all, write

from data_prep.readers.table.reader import Table
from trajformer.errors import SceneError, TrajformerWarning
from trajformer.scenes.scene import Scene

READER = Table(num_history=5, num_future=5, stride=10)
RESAMPLE = replace(READER, resample=True)
SPEED = {"a": (5.0, 1.0), "b": (-6.0, 0.5)}


def rows(name: str, time: np.ndarray, stamp: object = None, **cells: object) -> pd.DataFrame:
    """Rows of an agent with a constant velocity at times in seconds, written as `stamp`."""
    columns = {"track_id": name, "timestamp": time if stamp is None else stamp}
    vx, vy = SPEED[name]
    return pd.DataFrame(columns | {"x": vx * time, "y": vy * time} | cells)


def seconds(count: int, period: float = 0.1, start: float = 0.0) -> np.ndarray:
    return start + period * np.arange(count)


def in_time(*tracks: pd.DataFrame) -> pd.DataFrame:
    return frame(*tracks).sort_values("timestamp", kind="stable", ignore_index=True)


def scenes_of(
    folder: Path, table: pd.DataFrame, reader: Table = READER, suffix: str = ".csv"
) -> tuple[dict[str, Scene], str]:
    """All scenes of a table, and the warning about it."""
    write(folder / "val" / f"s{suffix}", table)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scenes = read_all(folder, reader)
    messages = {str(w.message) for w in caught if w.category is TrajformerWarning}
    return scenes, "; ".join(messages)


def problem_of(
    folder: Path, table: pd.DataFrame, reader: Table = READER, suffix: str = ".csv"
) -> str:
    """The problem of a table without a usable scene."""
    write(folder / "val" / f"s{suffix}", table)
    [item] = reader.inputs(folder, "val")
    with pytest.raises(SceneError) as caught:
        reader.read(item, "val", folder)
    return str(caught.value)


def error_m(scene: Scene) -> float:
    """Largest distance from a constant velocity, in metres."""
    largest = 0.0
    for agent, name in enumerate(scene.agent_id):
        step = np.flatnonzero(scene.valid[agent])
        moved = scene.period_s * step[:, None] * np.array(SPEED[name])
        rest = scene.position[agent, step] - moved
        largest = max(largest, float(np.ptp(rest, axis=0).max()))
    return largest


def test_windows_do_not_reach_over_a_pause(tmp_path: Path) -> None:
    time = seconds(40)
    stamp = time + 3.37 * (time > 1.95)
    table = in_time(rows("a", time, stamp), rows("b", time, stamp))
    scenes, warning = scenes_of(tmp_path, table)
    assert list(scenes) == ["s-t0", "s-t10", "s-t54", "s-t64"] and warning == ""
    for scene in scenes.values():
        assert scene.valid.all() and error_m(scene) < 1e-4


def test_parts_between_pauses_may_be_short(tmp_path: Path) -> None:
    time = seconds(40)
    stamp = time + 0.34 * (time > 1.95) + 0.34 * (time > 2.25)
    scenes, warning = scenes_of(tmp_path, rows("a", time, stamp))
    # The three rows between the pauses are off the grid.
    assert len(scenes) == 3
    assert "3 of 40 rows are not used" in warning and "--resample" in warning


def test_a_clock_may_drift_by_a_hundredth(tmp_path: Path) -> None:
    time = seconds(300, 0.1005)
    scenes, warning = scenes_of(tmp_path, rows("a", time))
    assert len(scenes) == 30 and warning == ""
    assert all(scene.valid.all() for scene in scenes.values())
    reason = problem_of(tmp_path, rows("a", seconds(300, 0.1016)))
    assert "the clock drifts" in reason and "--period-s 0.1016 fits" in reason


def test_single_rows_between_two_steps_are_left_out_and_counted(tmp_path: Path) -> None:
    stamp = seconds(30)
    stamp[[7, 18]] += 0.04
    scenes, warning = scenes_of(tmp_path, in_time(rows("a", stamp), rows("b", seconds(30))))
    assert len(scenes) == 3
    assert sum((~scene.valid).sum() for scene in scenes.values()) == 2
    assert "s.csv: 2 of 60 rows are not used: 2 between two steps" in warning
    missing = rows("a", np.where(np.arange(30) == 7, np.nan, seconds(30)))
    scenes, warning = scenes_of(tmp_path / "missing", missing)
    assert len(scenes) == 3 and "1 of 30 rows are not used: 1 with timestamp: empty" in warning


def test_a_row_between_two_steps_removes_no_row_on_a_step(tmp_path: Path) -> None:
    time = seconds(20)
    extra = np.array([0.74])  # after step 7 of the same track
    table = in_time(rows("a", time), rows("b", time), rows("a", extra))
    scenes, note = scenes_of(tmp_path, table)
    assert all(scene.valid.all() for scene in scenes.values())
    assert len(scenes) == 2
    assert "1 of 41 rows are not used" in note


def test_many_agents_with_their_own_jitter_share_a_grid(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tracks = []
    for number in range(40):
        stamp = seconds(60) + rng.normal(0, 0.008, 60)
        tracks.append(rows("a", stamp).assign(track_id=f"{number:02}"))
    scenes, _ = scenes_of(tmp_path, frame(*tracks))
    assert len(scenes) == 6
    assert np.mean([scene.valid.mean() for scene in scenes.values()]) > 0.98


HINTS = {  # table, options, parts of the message
    "another period": (rows("a", seconds(30, 0.04)), {}, ["--period-s 0.04 fits"]),
    "29.97 frames a second": (
        rows("a", np.arange(60) / 29.97),
        {},
        ["--period-s 0.03337 fits", "--resample"],
    ),
    "two phases": (
        in_time(rows("a", seconds(30)), rows("b", seconds(30, start=0.04))),
        {},
        ["'a' and 'b' are 0.04 s apart, as from several sensors", "--resample"],
    ),
    "two periods": (
        in_time(rows("a", seconds(30)), rows("b", seconds(40, 0.08, 0.013))),
        {},
        ["periods of 0.1 s ('a') and 0.08 s ('b')", "--resample"],
    ),
    "jitter": (
        rows("a", seconds(100) + np.random.default_rng(1).normal(0, 0.04, 100)),
        {},
        ["jitter: ", "--resample"],
    ),
    "nanoseconds": (
        rows("a", seconds(30), 1_714_600_000_000_000_000 + 100_000_000 * np.arange(30)),
        {},
        ["--time-unit ns"],
    ),
    "milliseconds at 25 Hz": (
        rows("a", seconds(30, 0.04), 40 * np.arange(30)),
        {},
        ["--time-unit ms --period-s 0.04"],
    ),
    "milliseconds as microseconds": (
        rows("a", seconds(30), 100 * np.arange(30)),
        {"time_unit": "us"},
        ["0.1 s apart if they are in ms: --time-unit ms"],
    ),
    "every second step": (rows("a", seconds(30, 0.2)), {}, ["--period-s 0.2 fits"]),
    "single precision": (
        rows("a", seconds(30), (1.7146e9 + seconds(30)).astype(np.float32)),
        {},
        ["precision was lost", "exact to 128"],
    ),
}


@pytest.mark.parametrize("case", HINTS)
def test_the_cause_of_unusable_times_is_named_with_its_option(tmp_path: Path, case: str) -> None:
    table, options, parts = HINTS[case]
    reason = problem_of(tmp_path, table, replace(READER, **options))
    for part in parts:
        assert part in reason


def test_a_clock_set_back_begins_another_recording(tmp_path: Path) -> None:
    time = seconds(60)
    stamp = time - 1.5 * (time > 2.95)
    table = pd.concat([in_time(rows("a", time[:30]), rows("b", time[:30]))])
    later = in_time(rows("a", time[30:], stamp[30:]), rows("b", time[30:], stamp[30:]))
    scenes, warning = scenes_of(tmp_path, frame(table, later))
    assert list(scenes) == ["s-t0", "s-t10", "s-t20", "s-p2-t0", "s-p2-t10", "s-p2-t20"]
    assert "timestamp: goes back" in warning
    assert all(error_m(scene) < 1e-4 for scene in scenes.values())
    by_track = frame(rows("a", time, stamp), rows("b", time, stamp))
    assert "the clock was set back" in problem_of(tmp_path / "tracks", by_track)


def test_a_counter_may_restart_and_rows_may_be_late(tmp_path: Path) -> None:
    time = seconds(30)
    both = frame(rows("a", time), rows("a", time + 3.0, time))
    both["step"] = np.tile(np.arange(30), 2)
    scenes, warning = scenes_of(tmp_path, both.drop(columns="timestamp"))
    assert len(scenes) == 6 and "step: goes back" in warning
    late = rows("a", time).iloc[[*range(10), 11, 12, 10, *range(13, 30)]]
    scenes, warning = scenes_of(tmp_path / "late", late)
    assert list(scenes) == ["s-t0", "s-t10", "s-t20"] and warning == ""


def test_rows_written_twice_are_one_problem(tmp_path: Path) -> None:
    table = rows("a", seconds(40))
    write(tmp_path / "val" / "s.csv", frame(table, table.iloc[10:30]))
    reasons = set()
    for item in READER.inputs(tmp_path, "val"):
        try:
            READER.read(item, "val", tmp_path)
        except SceneError as error:
            reasons.add(str(error))
    [reason] = reasons
    assert "--drop-duplicates true" in reason and "and 19 other rows twice" in reason


def test_steps_and_timestamps_may_leap_apart(tmp_path: Path) -> None:
    time = seconds(40)
    # Frames are counted on while the recording pauses.
    table = rows("a", time + 3.0 * (time > 1.95)).assign(step=np.arange(40))
    scenes, _ = scenes_of(tmp_path, table)
    assert list(scenes) == ["s-t0", "s-t10", "s-t20", "s-t30"]
    assert all(error_m(scene) < 1e-4 for scene in scenes.values())
    assert all(np.allclose(scene.velocity, SPEED["a"], atol=0.05) for scene in scenes.values())


@pytest.mark.parametrize(
    "table",
    [
        in_time(rows("a", seconds(100)), rows("b", seconds(100, start=0.04))),
        frame(rows("a", seconds(100)), rows("b", seconds(125, 0.08, 0.013))),
        rows("a", np.arange(300) / 29.97),
        rows("a", np.sort(seconds(100) + np.random.default_rng(2).normal(0, 0.04, 100))),
        rows("a", seconds(40, 0.25)),
    ],
)
def test_resampled_tracks_lie_on_the_grid(tmp_path: Path, table: pd.DataFrame) -> None:
    scenes, warning = scenes_of(tmp_path, table, RESAMPLE)
    assert len(scenes) in (9, 10) and warning == ""
    for scene in scenes.values():
        assert error_m(scene) < 2e-3
        assert np.allclose(scene.velocity[scene.valid][:, 0] % 11, 5.0, atol=0.05)
        assert scene.valid[:, 1:].mean() > 0.8


def test_resampling_interpolates_headings_on_the_circle_and_given_velocities(
    tmp_path: Path,
) -> None:
    time = seconds(20, 0.2)
    turning = np.arange(20) * 0.4 + 2.9
    heading = np.arctan2(np.sin(turning), np.cos(turning))
    # An agent that turns on the spot, so that its motion contradicts no value.
    table = rows("a", time, heading=heading, vx=0.05 * time, vy=0.01).assign(x=0.0, y=0.0)
    [scene, *_] = scenes_of(tmp_path, table, RESAMPLE)[0].values()
    expected = 2.9 + 0.2 * np.arange(10)
    difference = scene.heading[0] - expected
    assert np.allclose(np.cos(difference), 1.0, atol=1e-6)
    assert np.allclose(scene.velocity[0, :, 0], 0.05 * seconds(10), atol=1e-6)


def test_resampling_keeps_long_gaps_and_never_extrapolates(tmp_path: Path) -> None:
    reader = replace(RESAMPLE, num_history=30, num_future=30)
    time = seconds(61)
    short = rows("a", time[(time < 0.85) | (time > 1.65)])
    long = rows("b", time[(time < 0.85) | (time > 2.05)] + 0.03)
    [scene, *_] = scenes_of(tmp_path, in_time(short, long), reader)[0].values()
    assert scene.valid[0].all()
    # The rows of b begin at 0.03 s, and its gap is from 0.83 to 2.13 s.
    absent = [0, *range(9, 22)]
    assert np.flatnonzero(~scene.valid[1]).tolist() == absent


def test_resampling_shows_nothing_of_the_future(tmp_path: Path) -> None:
    # The gap from 0.3 to 0.8 s is around the last observed step, 0.4 s.
    time = seconds(30)
    table = rows("a", time[(time < 0.35) | (time > 0.75)])
    scene = scenes_of(tmp_path, in_time(table, rows("b", time)), RESAMPLE)[0]["s-t0"]
    assert scene.valid[0].tolist() == [True] * 4 + [False] + [True] * 5
    assert scene.agent_role.tolist() == [1, 1]  # lost for one step


def test_resampling_of_a_regular_table_changes_nothing(tmp_path: Path) -> None:
    table = in_time(rows("a", seconds(40)), rows("b", seconds(40)))
    plain, _ = scenes_of(tmp_path / "plain", table)
    resampled, _ = scenes_of(tmp_path / "resampled", table, RESAMPLE)
    assert list(plain) == list(resampled)
    for name, scene in plain.items():
        assert np.array_equal(scene.position, resampled[name].position)


def iso(time: np.ndarray, zone: str = "Z", hour: int = 12) -> list[str]:
    return [f"2024-05-01T{hour}:00:{value:06.3f}{zone}" for value in time]


def test_iso_dates_and_time_zones_are_timestamps(tmp_path: Path) -> None:
    time = seconds(30)
    plain, _ = scenes_of(tmp_path / "plain", in_time(rows("a", time), rows("b", time)))
    forms = {
        "utc": (iso(time), iso(time)),
        "zones": (iso(time), iso(time, "+02:00", 14)),
        "naive": ([text.replace("T", " ") for text in iso(time, "")], iso(time, "")),
        "names": (iso(time, " UTC"), iso(time, "-0100", 11)),
    }
    for name, (first, second) in forms.items():
        table = frame(rows("a", time, first), rows("b", time, second))
        scenes, warning = scenes_of(tmp_path / name, table)
        assert list(scenes) == list(plain) and warning == ""
        for key, scene in scenes.items():
            assert np.array_equal(scene.position, plain[key].position)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_dates_of_parquet_are_timestamps(tmp_path: Path, unit: str, zone: str | None) -> None:
    time = seconds(30)
    start = pd.Timestamp("2024-05-01", tz=zone)
    stamp = (start + pd.to_timedelta(np.round(1e3 * time), "ms")).as_unit(unit)
    scenes, warning = scenes_of(tmp_path, rows("a", time, stamp), suffix=".parquet")
    assert len(scenes) == 3 and warning == ""
    assert all(scene.valid.all() for scene in scenes.values())


def test_dates_of_two_forms_are_an_error_with_the_line(tmp_path: Path) -> None:
    time = seconds(20)
    mixed = frame(rows("a", time, iso(time)), rows("b", time, iso(time, "")))
    reason = problem_of(tmp_path, mixed)
    assert "timestamp: line 2 is with a time zone" in reason
    assert "line 22 is without a time zone" in reason
    numbers = frame(rows("a", time, iso(time)), rows("b", time))
    assert "line 22 is a number ('0.0')" in problem_of(tmp_path, numbers)
    american = rows("a", time, [f"05/01/2024 12:00:{value:04.1f}" for value in time])
    assert "neither a number nor an ISO date" in problem_of(tmp_path, american)
    odd = iso(time)
    odd[9] = "soon"
    scenes, warning = scenes_of(tmp_path, rows("a", time, odd))
    assert len(scenes) == 2 and "1 with timestamp: no ISO date" in warning
