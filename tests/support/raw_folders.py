"""A small valid raw folder for every reader."""

from collections.abc import Callable
from pathlib import Path

from support import fixtures, scenarios, sensor_logs, tables
from support.recordings import crowd, write_recording

from data_prep.reader import Reader
from data_prep.readers.names import READERS


def argoverse1(raw: Path) -> Reader:
    """One sequence with, and one without a future, and a map."""
    fixtures.argoverse1_folder(raw, sequences=1)
    return READERS["argoverse1"]()


def argoverse2(raw: Path) -> Reader:
    """One scenario with its map."""
    fixtures.write_argoverse2(raw)
    return READERS["argoverse2"]()


def argoverse2_sensor(raw: Path) -> Reader:
    """One log, cut into two windows."""
    sensor_logs.write_log(raw / "val" / "log-1")
    return READERS["argoverse2_sensor"](stride_s=2.0)


def eth_ucy(raw: Path) -> Reader:
    """One recording of one window."""
    write_recording(raw / "eth" / "biwi_eth.txt", crowd())
    return READERS["eth_ucy"]()


def scenarionet(raw: Path) -> Reader:
    """One scenario, cut into two windows."""
    scenarios.write(raw / "val", scenarios.scenario())
    return READERS["scenarionet"](history_s=0.8, future_s=0.7, stride_s=1.0)


def table(raw: Path) -> Reader:
    """The same tracks as CSV and as Parquet, with lanes."""
    tables.write(raw / "val" / "drive.csv", tables.two_tracks())
    tables.write(raw / "val" / "packed.parquet", tables.two_tracks())
    tables.write_lanes(raw / "val" / "lanes.json", {"points": [[0.0, 0.0], [300.0, 0.0]]})
    area = {"kind": "drivable_area", "points": [[0.0, -9.0], [9.0, -9.0], [9.0, 9.0]]}
    tables.write_lanes(raw / "val" / "packed.lanes.geojson", area, {"points": [[0.0, 0.0], [9.0, 0.0]]}, geojson=True)
    return READERS["table"](num_history=5, num_future=5)


FOLDERS: dict[str, Callable[[Path], Reader]] = {
    function.__name__: function for function in (argoverse1, argoverse2, argoverse2_sensor, eth_ucy, scenarionet, table)
}
