"""Each problem of a forecast file is counted and listed, and the other forecasts are scored."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import fixtures

from data_prep.raw_scenes import RawScenes, scenes_of_raw
from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_csv import COLUMNS
from trajformer.evaluation.forecast_file import read_modes
from trajformer.evaluation.score import score

Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> RawScenes:
    """Three scenes with the focal track 9, the scored track 10, and AV, b and a."""
    raw = tmp_path_factory.mktemp("raw")
    for number in range(3):
        columns = fixtures.argoverse2_columns(seed=number)
        fixtures.write_argoverse2(raw, columns, uuid=f"s-{number}")
    return scenes_of_raw(Argoverse2(), raw, "val")


def forecasts() -> pd.DataFrame:
    """Forecasts of all scored tracks of the three scenes, in the columns of a CSV file."""
    parts = []
    for number in range(3):
        for track_id in ("9", "10"):
            for mode, probability in enumerate((0.5, 0.3, 0.2)):
                step = np.arange(1, 61)
                part = pd.DataFrame({"step": step, "x": 1025.0 + 0.1 * step * mode, "y": -700.0})
                part["mode"] = mode
                part["probability"] = probability
                parts.append(part.assign(scene_id=f"s-{number}", track_id=track_id))
    return pd.concat(parts)[list(COLUMNS)].reset_index(drop=True)


def of(frame: pd.DataFrame, scene_id: str = "s-0", track_id: str = "10") -> pd.Series:
    """The rows of one track."""
    return (frame.scene_id == scene_id) & (frame.track_id == track_id)


def with_values(frame: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The forecasts with other values for one track."""
    changed = frame.copy()
    for name, value in values.items():
        changed.loc[of(frame), name] = value
    return changed


def missing(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[~of(frame)]


def surplus(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame[of(frame)].assign(track_id="77")])


def not_selected(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame[of(frame)].assign(track_id="b")])


def duplicate(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame[of(frame)]])


def short(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[~(of(frame) & (frame.step > 30))]


def gap(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[~(of(frame) & (frame.step == 30))]


def other_scene(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame[of(frame)].assign(scene_id="s-9")])


def fewer_modes(frame: pd.DataFrame) -> pd.DataFrame:
    kept = frame[~(of(frame) & (frame["mode"] > 0))]
    return with_values(kept, probability=1.0)


def unequal_sum(frame: pd.DataFrame) -> pd.DataFrame:
    return with_values(frame, probability=frame.probability[of(frame)] / 2)


def negative(frame: pd.DataFrame) -> pd.DataFrame:
    return with_values(frame, probability=[0.7] * 60 + [0.5] * 60 + [-0.2] * 60)


NOT_SCORED = {"malformed": 1, "missing": 1}
CASES = {  # change, number of scored agents, findings by kind
    "right": (lambda frame: frame, 6, {}),
    "missing": (missing, 5, {"missing": 1}),
    "surplus": (surplus, 6, {"unknown agent": 1}),
    "not selected": (not_selected, 6, {"not selected": 1}),
    "duplicate": (duplicate, 5, {"duplicate": 1, "missing": 1}),
    "wrong horizon": (short, 5, {"wrong horizon": 1, "missing": 1}),
    "missing step": (gap, 5, NOT_SCORED),
    "wrong scene": (other_scene, 6, {"unknown scene": 1}),
    "fewer modes": (fewer_modes, 6, {"modes": 1}),
    "wrong sum": (unequal_sum, 6, {"probabilities": 1}),
    "negative probability": (negative, 5, NOT_SCORED),
    "NaN": (
        lambda frame: with_values(frame, probability=np.nan),
        5,
        {"malformed": 1, "missing": 1},
    ),
    "infinity": (lambda frame: with_values(frame, x=np.inf), 5, NOT_SCORED),
}


@pytest.mark.parametrize("name", CASES)
def test_problems_are_counted(scenes: RawScenes, tmp_path: Path, name: str) -> None:
    change, num_agents, kinds = CASES[name]
    path = tmp_path / "f.csv"
    change(forecasts()).to_csv(path, index=False)
    scoring = score(read_modes(path), scenes, label="f.csv")
    assert {finding.kind: finding.count for finding in scoring.findings} == kinds
    assert len(scoring.per_agent) == num_agents
    for finding in scoring.findings:
        assert "of scene s-" in finding.line()


def test_scenes_without_a_future_are_an_error(tmp_path: Path) -> None:
    columns = fixtures.argoverse2_columns(steps=50)
    fixtures.write_argoverse2(tmp_path / "raw", columns, split="test", uuid="s-0")
    path = tmp_path / "f.csv"
    forecasts().to_csv(path, index=False)
    scenes = scenes_of_raw(Argoverse2(), tmp_path / "raw", "test")
    with pytest.raises(TrajformerError, match="'test' can be scored: its scenes have no recorded"):
        score(read_modes(path), scenes)


def test_a_missing_step_is_named(scenes: RawScenes, tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    gap(forecasts()).to_csv(path, index=False)
    finding = score(read_modes(path), scenes).findings[0]
    assert finding.examples == ("track 10 of scene s-0: mode 0 has no step 30",)
