"""Broken text files of all data sets, with the expected reasons."""

from pathlib import Path

import pytest
from support.damages import (
    LINES_TWICE,
    Cases,
    Files,
    check_dropped,
    check_refused,
    names_of_cases,
    word,
)
from support.hostile import text

from trajformer.testing.readers import change_bytes

RECORDINGS: Cases = {
    "frame nan": (
        word(0, "nan"),
        r"line 5, column 0 \(frame\): 'nan', expected a whole number",
    ),
    "frame -1e300": (
        word(0, "-1e300"),
        r"line 5, column 0 \(frame\): '-1e300', expected a whole number",
    ),
    "x nan": (word(13, "nan"), r"line 5, column 13 \(x\): 'nan', expected a number"),
    "x -1e300": (word(13, "-1e300"), r"line 5, column 13 \(x\): '-1e300', expected a number"),
    "half a frame": (
        word(0, "780.5"),
        r"line 5, column 0 \(frame\): '780.5', expected a whole number",
    ),
    "long": (word(13, "9" + "e" * 5000), r"line 5, column 13 \(x\): '9e{39}', expected a number"),
    "far": (
        word(13, "60000"),
        r"line 5, column 13 \(x\): '60000', expected a number of metres up to 50000",
    ),
    "a lost block": (
        change_bytes(lambda data: data[:300] + bytes(90) + data[390:]),
        "it has zero bytes",
    ),
    "commas": (text(" ", ","), "line 1: 1 columns, expected 17"),
    "each row twice": (
        LINES_TWICE,
        r"column 1 \(id\): .* is twice in frame",
    ),
    "one line": (
        text("(?s)\n.*", ""),
        "frame: no agent is present in 20 consecutive frames, of 1 in all",
    ),
    "19 frames": (
        text("970.0 [^\n]*\n", ""),
        "no agent is present in 20 consecutive frames, of 19 in all",
    ),
}

PLACES: Cases = {
    "5 columns": (text("\n", " 1\n"), "line 1: 5 columns, expected 4"),
    "x NaN": (
        word(2, "nan"),
        r"line 5, column 2 \(x\): 'nan', expected a number of pixels up to 50000",
    ),
    "far": (
        word(3, "60000"),
        r"line 5, column 3 \(y\): '60000', expected a number of pixels up to 50000",
    ),
    "19 frames": (
        text("\n228 [^\n]*", ""),
        "no agent is present in 20 consecutive frames, of 19 in all",
    ),
}

LABELS: Cases = {
    "17 columns": (text(r" [^ \n]*\n", "\n"), "line 1: 17 columns, expected 18"),
    "x": (word(13, "nan"), r"line 5, column 13 \(x\): 'nan', expected a number of metres"),
    "yaw": (word(16, "inf"), r"line 5, column 16 \(yaw\): 'inf', expected a number of radians"),
    "target 2": (word(17, "2"), r"line 5, column 17 \(target\): '2', expected a whole number"),
    "10 Hz": (
        text(r"(?m)^(\d+) ", r"\g<1>0 "),
        r"column 0 \(frame\): frames are 10 apart, expected 1, a frame every 0.5 s",
    ),
    "each row twice": (
        LINES_TWICE,
        r"#[34]: two rows for step 0 of track '1'",
    ),
    "no target": (text(r" 1\.0\n", " 0.0\n"), r"column 17 \(target\): no row is a target"),
    "incomplete future": (text(r"(?m)^12 1 .*\n", ""), "target 1 has 11 of 12 future steps"),
}

METAS: Cases = {
    "no scale": (text("3.00", "0"), r"line 3, column 0 \(scale\): 0, expected more than 0"),
    "another place": (text("620.00", "900.00"), "target 1 is outside the raster"),
}

FILES: Files = {
    "recording": ("eth_ucy", "*.txt", RECORDINGS),
    "place": ("sdd", "*.txt", PLACES),
    "labels": ("nuscenes_prediction", "scene-*.txt", LABELS),
    "raster-meta": ("nuscenes_prediction", "meta_*.txt", METAS),
}


@pytest.mark.parametrize(("kind", "case"), names_of_cases(FILES))
def test_a_broken_text_file_is_refused_with_the_reason(
    tmp_path: Path, kind: str, case: str
) -> None:
    check_refused(FILES, kind, case, tmp_path / "raw")


DETAILS: Files = {
    "recordings": (
        "eth_ucy",
        "*.txt",
        {"type": (word(2, "Biker"), r"column 2 \(type\): 'Biker', expected 'Pedestrian'")},
    ),
    "labels": (
        "nuscenes_prediction",
        "scene*.txt",
        {
            "unknown kind": (word(2, "Tram"), r"column 2 \(kind\): unknown value 'Tram'$"),
            "long kind": (word(2, "T" * 5000), r"column 2 \(kind\): unknown value 'T{40}'$"),
        },
    ),
}


@pytest.mark.parametrize(("kind", "case"), names_of_cases(DETAILS))
def test_an_unknown_label_is_counted(tmp_path: Path, kind: str, case: str) -> None:
    check_dropped(DETAILS, kind, case, tmp_path / "raw")
