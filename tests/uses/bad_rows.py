"""Recordings in which a row, a pose or the clock is wrong: the rest of the recording is used."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from support import interaction, recordings, sensor_logs
from support.raw_folders import FOLDERS
from support.uses import Case

RAW = Path("messy")


def prepared(reader: str, options: str = "") -> str:
    return f"preprocess {reader} {RAW} s --workers 1 {options}"


def changed_lines(
    reader: str, pattern: str, change: Callable[[list[str]], None]
) -> Callable[..., None]:
    """The raw folder of a reader, with other lines in its first file of a pattern."""

    def write() -> None:
        FOLDERS[reader](RAW)
        path = sorted(RAW.rglob(pattern))[0]
        lines = path.read_text().splitlines()
        change(lines)
        path.write_text("\n".join(lines) + "\n")

    return write


def text_and_nan(lines: list[str]) -> None:
    """A header, a line of text, and a position that is not a number in the row of a passer-by."""
    row = next(number for number, line in enumerate(lines) if " 6.0 " in line)
    lines[row] = lines[row].replace("Pedestrian", "Pedestrian", 1).rsplit(" ", 2)[0] + " nan -1.0"
    lines.insert(0, "frame id x y")
    lines.append("# end of the recording")


def frame_of_text(lines: list[str]) -> None:
    lines[4] = lines[4].replace(lines[4].split()[0], "12:30", 1)


def wrong_timestamp(lines: list[str]) -> None:
    cells = lines[30].split(",")
    cells[2] = "99"
    lines[30] = ",".join(cells)


def pause_of_a_crowd() -> None:
    """A pedestrian for 24 frames, then, after a pause off the grid, for 21 frames."""
    walk = recordings.straight(24, (0, 0), (1.0, 0))
    later = recordings.straight(21, (30, 0), (1.0, 0))
    rows = recordings.lines([recordings.Walk("1.0", walk)])
    rows += recordings.lines([recordings.Walk("1.0", later, start=26)], first=783)
    recordings.write_recording(RAW / "eth" / "biwi_eth.txt", rows)


def pause_of_cars() -> None:
    """A recording of 60 and 60 frames; the clock pauses for a second between them."""
    interaction.folder(RAW)
    path = RAW / "recorded_trackfiles" / interaction.LOCATION / "vehicle_tracks_000.csv"
    interaction.write_recording(path, interaction.traffic(120))
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines[1:], 1):
        cells = line.split(",")
        if int(cells[1]) > 60:
            cells[2] = str(int(cells[2]) + 1000)
        lines[number] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")


def missing_pose() -> None:
    """A log without the pose of one sweep."""
    pose_rows = sensor_logs.poses()
    is_kept = pose_rows["timestamp_ns"] != sensor_logs.stamps(np.array([70]))[0]
    sensor_logs.write_log(RAW / "val" / "log-1", pose_rows=sensor_logs.take(pose_rows, is_kept))


CASES = [
    Case(
        "bad lines in a recording of pedestrians",
        prepared("eth_ucy"),
        r"(?s)eth_test: 1 scenes.*0 skipped\n  dropped 2 details of eth/biwi_eth.txt: row: another "
        r"number of columns, expected 17\n  dropped 1 detail of .*: row: column 15 \(y\)",
        changed_lines("eth_ucy", "*.txt", text_and_nan),
        status=0,
    ),
    Case(
        "a pause in a recording of pedestrians",
        prepared("eth_ucy"),
        "eth_test: 7 scenes, .* 0 skipped",
        pause_of_a_crowd,
        status=0,
    ),
    Case(
        "a bad line in a recording of a drone",
        prepared("sdd"),
        r"dropped 1 detail of train/gates_0.txt: row: column 0 \(frame\): expected a whole number",
        changed_lines("sdd", "gates_0.txt", frame_of_text),
        status=0,
    ),
    Case(
        "a wrong timestamp in a recording of vehicles",
        prepared("interaction"),
        r"(?s)recorded_trackfiles: 3 scenes.*dropped 1 detail of .*_000.csv: row: timestamp_ms: ",
        changed_lines("interaction", "vehicle*.csv", wrong_timestamp),
        status=0,
    ),
    Case(
        "a pause in a recording of vehicles",
        prepared("interaction", "--split recorded_trackfiles"),
        "recorded_trackfiles: 6 scenes, .* 0 skipped",
        pause_of_cars,
        status=0,
    ),
    Case(
        "a sensor log without a pose",
        prepared("argoverse2_sensor"),
        r"(?s)val: 3 scenes, .* 0 skipped\n  dropped 6 details of .*row: timestamp_ns: no pose in",
        missing_pose,
        status=0,
    ),
]
