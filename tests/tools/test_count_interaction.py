"""Counts of INTERACTION files against the csv files, and the distance of cars to the lanes."""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import count_interaction
import numpy as np
import pytest
from support import interaction as files

LOCATIONS = ("DR_CHN_Roundabout_LN", "DR_USA_Roundabout_SR")


def test_counts_are_those_of_the_csv_files(interaction_slice: Path, tmp_path: Path) -> None:
    for folder, ending in (("recorded_trackfiles", ""), ("val", "_val.csv"), ("maps", ".osm_xy")):
        (tmp_path / folder).mkdir()
        for name in LOCATIONS:
            (tmp_path / folder / (name + ending)).symlink_to(
                interaction_slice / folder / (name + ending)
            )
    metrics = count_interaction.count(tmp_path)
    counts = dict(zip(count_interaction.COUNTS, metrics[count_interaction.ALL][0], strict=True))
    recordings = sorted((tmp_path / "recorded_trackfiles").glob("*/*.csv"))
    assert counts["recordings"] == len(recordings)
    rows = [list(csv.DictReader(path.open())) for path in recordings]
    assert counts["tracks"] == sum(len({row["track_id"] for row in part}) for part in rows)
    frames = [[int(row["frame_id"]) for row in part] for part in rows]
    assert counts["minutes"] == pytest.approx(
        sum(max(part) - min(part) + 1 for part in frames) / 600
    )
    steps: dict[tuple[str, str, str], set[int]] = defaultdict(
        set
    )  # of the cars, by location, case and track
    for path in (tmp_path / "val").iterdir():
        for row in csv.DictReader(path.open()):
            if row["agent_type"] == "car":
                steps[path.name, row["case_id"], row["track_id"]].add(int(row["frame_id"]))
    assert counts["cases"] == len({key[:2] for key in steps})
    assert counts["cars, 40 steps"] == sum(len(seen) == 40 for seen in steps.values())
    assert counts["cars, steps 9 and 39"] == sum({10, 40} <= seen for seen in steps.values())
    assert metrics.keys() == {*LOCATIONS, count_interaction.ALL}
    for name, (_, median, aligned) in metrics.items():
        assert 0.2 < median < count_interaction.MAX_MEDIAN_M, name
        assert aligned > 0.75, name


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
    sums = count_interaction.count(raw)[count_interaction.ALL][0]
    monkeypatch.setattr(count_interaction, "EXPECTED", tuple(np.rint(sums).astype(int).tolist()))
    count_interaction.main()
    monkeypatch.setattr(count_interaction, "MAX_MEDIAN_M", -1.0)
    with pytest.raises(SystemExit, match=r"a median distance of .* m to the lanes"):
        count_interaction.main()
