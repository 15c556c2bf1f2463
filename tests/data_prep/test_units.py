"""Tables in other units than metres and seconds are refused, and options read them correctly."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.scenes import make_scene
from support.tables import SMALL, read, two_tracks, write

from data_prep.engine.plausible import check_plausible
from data_prep.engine.prepare import PrepareOptions, prepare
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.scene import scenes_equal

Change = Callable[[pd.DataFrame], pd.DataFrame]
DEGREE_M = 111_320.0


def scaled(factor: float, *names: str) -> Change:
    """Columns multiplied by a number."""
    return lambda table: table.assign(**{name: table[name] * factor for name in names})


def as_time(unit: float, jitter: float = 0.0) -> Change:
    """Timestamps in place of steps, in a unit of so many per second."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        noise = np.random.default_rng(0).uniform(-jitter, jitter, table.step.nunique())
        return table.assign(timestamp=(0.1 * table.step + noise[table.step]) * unit).drop(columns="step")

    return change


WRONG: dict[str, tuple[Change, str]] = {
    "millimetres": (scaled(1e3, "x", "y"), "position: the 99th percentile of the speed is 5099 m/s, expected 150"),
    "60 times as fast": (scaled(60.0, "x", "y"), "the 99th percentile of the speed is 305.9 m/s"),
    "jumps of 900 m": (lambda t: t.assign(x=900.0 * t.step), "the 99th percentile of the speed is 9000 m/s"),
    "degrees": (scaled(1 / DEGREE_M, "x", "y"), r"position: 2 agents within 4\.\de-05 m, degrees instead of metres"),
    "velocities in mm/s": (lambda t: t.assign(vx=5e3, vy=1e3), "vx: speeds are 1e.03 times the displacements per second"),
    "positions in feet": (lambda t: scaled(3.281, "x", "y")(t).assign(vx=5.0, vy=1.0), "vx: speeds are 0.305 times"),
    "milliseconds": (as_time(1e3), "most steps are missing: steps with rows are 1000 apart; .*--time-unit"),
    "irregular milliseconds": (lambda t: as_time(1e3, 0.01)(t).round(0), "most steps are missing"),
    "every tenth frame": (scaled(10, "step"), "most steps are missing: steps with rows are 10 apart; --step-interval"),
    "duplicates": (lambda t: pd.concat([t, t.assign(x=t.x + 1)]), "track_id .--drop-duplicates uses the first row.: two rows"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_table_in_other_units_is_refused(tmp_path: Path, case: str) -> None:
    change, reason = WRONG[case]
    write(tmp_path / "raw" / "val" / "drive.csv", change(two_tracks()))
    with pytest.raises(TrajformerError, match=f"no usable scene .*drive.csv.*{reason}"):
        prepare(SMALL, tmp_path / "raw", tmp_path / "store", PrepareOptions(progress=False))


READ: dict[str, tuple[Change, dict[str, Any]]] = {
    "milliseconds": (as_time(1e3, 0.01), {"time_unit": "ms"}),
    "nanoseconds": (as_time(1e9), {"time_unit": "ns"}),
    "every tenth frame": (scaled(10, "step"), {"step_interval": 10}),
    "duplicates": (lambda t: pd.concat([t, t.assign(x=t.x + 1)]), {"drop_duplicates": True}),
    "unsorted": (lambda t: t.sample(frac=1.0, random_state=0), {}),
}


@pytest.mark.parametrize("case", READ)
def test_options_read_them(tmp_path: Path, case: str) -> None:
    change, options = READ[case]
    expected = read(tmp_path / "plain", two_tracks())
    assert scenes_equal(read(tmp_path / "changed", change(two_tracks()), replace(SMALL, **options)), expected)


def test_the_speed_limit_is_an_option(tmp_path: Path) -> None:
    write(tmp_path / "raw" / "val" / "drive.csv", scaled(60.0, "x", "y")(two_tracks()))
    for limit in (400.0, 0.0):
        options = PrepareOptions(progress=False, max_speed_m_s=limit)
        assert prepare(SMALL, tmp_path / "raw", tmp_path / f"store{limit}", options).scenes == 1
    with pytest.raises(TrajformerError, match="max_speed_m_s: nan, expected 0"):
        prepare(SMALL, tmp_path / "raw", tmp_path / "store", PrepareOptions(max_speed_m_s=np.nan))


def test_single_positions_may_be_far_off() -> None:
    scene = make_scene(1, num_history=20, num_future=180)
    position, valid = np.zeros((1, 200, 2), np.float32), np.ones((1, 200), bool)
    position[0, :, 0] = 0.5 * np.arange(200)
    scene = replace(scene, position=position, velocity=np.zeros_like(position), valid=valid)
    check_plausible(scene, 150.0)
    position[0, 25] = 900.0  # 2 of 199 steps
    with pytest.raises(SceneError, match="99th percentile"):
        check_plausible(scene, 150.0)
    position[0, 25] = position[0, 24]
    position[0, 199] = 900.0
    check_plausible(scene, 150.0)
