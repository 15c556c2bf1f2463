"""Forecasts in CSV files: round trip, copies, gaps, and errors that name the wrong content."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_csv import COLUMNS, ModeRow, read_mode_rows

Change = Callable[[pd.DataFrame], pd.DataFrame]


def table(steps: int = 4) -> pd.DataFrame:
    """Three tracks of two scenes with two modes each."""
    rng = np.random.default_rng(0)
    rows = []
    for scene_id, track_id in (("b", "0001"), ("a", "1"), ("b", "AV")):
        for mode, probability in enumerate((0.25, 0.75)):
            for step in range(1, steps + 1):
                x, y = 5000.0 + rng.normal(size=2)
                rows.append((scene_id, track_id, mode, probability, step, x, y))
    return pd.DataFrame(rows, columns=COLUMNS)


def read(path: Path, content: pd.DataFrame) -> list[ModeRow]:
    content.to_csv(path, index=False)
    return list(read_mode_rows(path))


def test_round_trip_is_exact_for_any_order_of_rows(tmp_path: Path) -> None:
    content = table()
    for frame in (content, content[::-1], content.assign(note="x, y")):
        rows = read(tmp_path / "f.csv", frame)
        assert len(rows) == 6
        for row in rows:
            assert row.problem == ""
            expected = content[(content.scene_id == row.scene_id)]
            expected = expected[expected.track_id == row.track_id]
            expected = expected[expected.probability == row.probability]
            np.testing.assert_array_equal(row.position, expected[["x", "y"]])
    in_order = read(tmp_path / "f.csv", content)
    assert [(row.scene_id, row.track_id) for row in in_order[::2]] == [
        ("b", "0001"),
        ("a", "1"),
        ("b", "AV"),
    ]
    assert [row.probability for row in in_order] == [0.25, 0.75] * 3


def test_a_mode_that_is_given_twice_is_two_modes(tmp_path: Path) -> None:
    content = table()
    rows = read(tmp_path / "f.csv", pd.concat([content, content[:8]]))
    assert [row.track_id for row in rows[:4]] == ["0001"] * 4
    assert [row.probability for row in rows[:4]] == [0.25, 0.25, 0.75, 0.75]
    np.testing.assert_array_equal(rows[0].position, rows[1].position)


def test_missing_steps_and_values_are_problems_of_one_mode(tmp_path: Path) -> None:
    content = table()
    content.loc[9, "x"] = np.nan
    content.loc[16:19, "probability"] = np.nan
    content = content.drop(index=2)
    rows = read(tmp_path / "f.csv", content)
    assert [row.problem for row in rows] == ["mode 0 has no step 3", *[""] * 5]
    assert np.isnan(rows[2].position[1, 0])
    assert np.isnan(rows[4].probability)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns=["step", "y"]), "no column step, y; expected a header"),
        (lambda frame: frame.assign(step=frame.step - 1), "step: 0 in row 2.*1 is the first step"),
        (lambda frame: frame.assign(step=frame.step + 0.5), "step: 1.5 in row 2"),
        (lambda frame: frame.assign(mode=-1), "mode: -1 in row 2, expected whole numbers"),
        (lambda frame: frame.assign(mode=np.nan), "mode: nan in row 2"),
        (lambda frame: frame[:0], "no rows"),
        (
            lambda frame: frame.assign(probability=np.linspace(0, 1, len(frame))),
            "probability: 0 to 0.13.* in mode 0 of track '0001' in scene 'b', expected one value",
        ),
    ],
)
def test_errors_name_the_wrong_content(tmp_path: Path, change: Change, message: str) -> None:
    with pytest.raises(TrajformerError, match=message):
        read(tmp_path / "f.csv", change(table()))
