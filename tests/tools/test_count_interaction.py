"""Counts of INTERACTION files against the csv files, and the distance of cars to the lanes."""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from research import count_interaction
from support import interaction as files

LOCATIONS = ("DR_CHN_Roundabout_LN", "DR_USA_Roundabout_SR")


def read_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


def steps_of_cars(folder: Path) -> dict[tuple[str, str, str], set[int]]:
    """Frames of each car by location, case and track."""
    steps: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for path in folder.iterdir():
        for row in read_rows(path):
            if row["agent_type"] == "car":
                key = (path.name, row["case_id"], row["track_id"])
                steps[key].add(int(row["frame_id"]))
    return steps


@pytest.fixture
def two_locations(interaction_slice: Path, tmp_path: Path) -> Path:
    """A raw folder with the recordings, cases and maps of two locations."""
    for folder, ending in (("recorded_trackfiles", ""), ("val", "_val.csv"), ("maps", ".osm_xy")):
        (tmp_path / folder).mkdir()
        for location in LOCATIONS:
            name = location + ending
            (tmp_path / folder / name).symlink_to(interaction_slice / folder / name)
    return tmp_path


def test_counts_are_those_of_the_csv_files(two_locations: Path) -> None:
    results = count_interaction.count(two_locations)
    assert results.keys() == {*LOCATIONS, count_interaction.ALL}
    counts = results[count_interaction.ALL].counts

    recordings = sorted((two_locations / "recorded_trackfiles").glob("*/*.csv"))
    tracks = 0
    frames = 0
    for path in recordings:
        rows = read_rows(path)
        tracks += len({row["track_id"] for row in rows})
        numbers = [int(row["frame_id"]) for row in rows]
        frames += max(numbers) - min(numbers) + 1
    assert counts.recordings == len(recordings)
    assert counts.tracks == tracks
    assert counts.minutes == pytest.approx(frames / 600)

    steps = steps_of_cars(two_locations / "val")
    assert counts.cases == len({(location, case) for location, case, _ in steps})
    assert counts.cars_40_steps == sum(len(seen) == 40 for seen in steps.values())
    assert counts.cars_steps_9_and_39 == sum({10, 40} <= seen for seen in steps.values())


def test_cars_drive_on_the_lanes(two_locations: Path) -> None:
    for location, result in count_interaction.count(two_locations).items():
        assert 0.2 < result.median_m < count_interaction.MAX_MEDIAN_M, location
        assert result.aligned > 0.75, location


def test_other_counts_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = files.folder(tmp_path)
    monkeypatch.setattr(sys, "argv", ["count_interaction.py", str(raw)])
    count_interaction.main()
    assert "| TEST_Intersection | 1 | 0 | 5 | 2 | " in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--check"])
    with pytest.raises(SystemExit, match=r"expected \(132, 596, 19425, 8756, 68449, 72457\)"):
        count_interaction.main()
    sums = count_interaction.count(raw)[count_interaction.ALL].counts
    expected = tuple(np.rint(sums).astype(int).tolist())
    monkeypatch.setattr(count_interaction, "EXPECTED", expected)
    count_interaction.main()
    monkeypatch.setattr(count_interaction, "MAX_MEDIAN_M", -1.0)
    with pytest.raises(SystemExit, match=r"a median distance of .* m to the lanes"):
        count_interaction.main()
