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
from support.hostile import prefix, text

from trajformer.testing.readers import change_bytes


def repeat_last_line(data: bytes) -> bytes:
    lines = data.rstrip().splitlines(keepends=True)
    return b"".join([*lines, b"\n", lines[-1]])


last_line_twice = change_bytes(repeat_last_line)
RECORDINGS: Cases = {
    "a lost block": (
        change_bytes(lambda data: data[:300] + bytes(90) + data[390:]),
        "it has zero bytes",
    ),
    "commas": (text(" ", ","), "line 1: 1 columns, expected 17 or 4"),
    "a third without x": (
        text(r"(?m)^(8[0-5]\d.*) \S+ -1.0 (\S+ -1.0)$", r"\1 nan -1.0 \2"),
        r"line \d+, column 13 \(x\): 'nan', expected .* \(34 of 118 rows cannot be used\)",
    ),
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
    "19 frames": (
        text("\n228 [^\n]*", ""),
        "no agent is present in 20 consecutive frames, of 19 in all",
    ),
}

LABELS: Cases = {
    "17 columns": (text(r" [^ \n]*\n", "\n"), "line 1: 17 columns, expected 18"),
    "10 Hz": (
        text(r"(?m)^(\d+) ", r"\g<1>0 "),
        r"column 0 \(frame\): frames are 10 apart, expected 1, a frame every 0.5 s",
    ),
    "each row twice": (
        LINES_TWICE,
        r"line 35, column 1 \(id\): 1 is twice in frame 0 \(34 of 68 rows",
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
    "place": ("sdd", "gates_0.txt", PLACES),
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
        {
            "type": (word(2, "Biker"), r"column 2 \(type\): 'Biker', expected 'Pedestrian'"),
            "frame nan": (word(0, "nan"), r"row: column 0 \(frame\): expected a whole number"),
            "frame -1e300": (word(0, "-1e300"), r"row: column 0 \(frame\): expected a whole"),
            "half a frame": (word(0, "780.5"), r"row: column 0 \(frame\): expected a whole"),
            "off the interval": (word(0, "783"), r"row: column 0 \(frame\): off the interval"),
            "x nan": (word(13, "nan"), r"row: column 13 \(x\): expected a number of metres"),
            "x -1e300": (word(13, "-1e300"), r"row: column 13 \(x\): expected a number"),
            "long": (word(13, "9" + "e" * 5000), r"row: column 13 \(x\): expected a number"),
            "far": (word(13, "60000"), r"row: column 13 \(x\): .* of metres up to 50000"),
            "a short line": (word(16, ""), "row: another number of columns, expected 17"),
            "a header": (prefix("frame id x y\n"), "row: another number of columns"),
            "a row twice": (last_line_twice, r"row: column 1 \(id\): twice in a frame"),
            "not UTF-8": (
                change_bytes(lambda data: data.replace(b"5.0 Ped", b"5.0 P\xff", 1)),
                "row: not text in UTF-8",
            ),
        },
    ),
    "places": (
        "sdd",
        "*.txt",
        {
            "x NaN": (word(2, "nan"), r"row: column 2 \(x\): expected a number of pixels"),
            "far": (word(3, "60000"), r"row: column 3 \(y\): .* of pixels up to 50000"),
            "a header": (prefix("frame id x y\n"), r"row: column 0 \(frame\): expected a whole"),
        },
    ),
    "labels": (
        "nuscenes_prediction",
        "scene*.txt",
        {
            "x": (word(13, "nan"), r"row: column 13 \(x\): expected a number of metres"),
            "yaw": (word(16, "inf"), r"row: column 16 \(yaw\): expected a number of radians"),
            "target 2": (word(17, "2"), r"row: column 17 \(target\): expected a whole number"),
            "a row twice": (last_line_twice, r"row: column 1 \(id\): twice in a frame"),
            "unknown kind": (word(2, "Tram"), r"column 2 \(kind\): unknown value 'Tram'$"),
            "long kind": (word(2, "T" * 5000), r"column 2 \(kind\): unknown value 'T{40}'$"),
        },
    ),
}


@pytest.mark.parametrize(("kind", "case"), names_of_cases(DETAILS))
def test_an_unusable_detail_is_counted(tmp_path: Path, kind: str, case: str) -> None:
    check_dropped(DETAILS, kind, case, tmp_path / "raw")
