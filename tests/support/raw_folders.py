"""A small valid raw folder for every reader: the function of its name writes it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from support import drone_files, fixtures, nuplan_files, scenarios, sensor_logs, tables
from support import interaction as interaction_files
from support import waymo as waymo_records
from support.recordings import crowd, write_recording

from data_prep.reader import Reader
from data_prep.readers.names import READERS


def built_in_readers() -> list[str]:
    """Names of the readers of this project, without those of other installed packages."""
    names = []
    for name, reader in READERS.items():
        if reader.__module__.startswith("data_prep."):
            names.append(name)
    return names


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


def ind(raw: Path) -> Reader:
    """A recording of inD, and one of SIND with a map."""
    drone_files.write_ind(raw / "data")
    drone_files.write_sind(raw / "Tianjin" / "8_2_1")
    drone_files.write_degrees_map(raw / "Tianjin" / "map.osm")
    return READERS["ind"](**drone_files.SMALL)


def commonroad(raw: Path) -> Reader:
    """One scenario."""
    drone_files.write_commonroad(raw / "val" / "ZAM_Test-1_1_T-1.xml")
    return READERS["commonroad"](**drone_files.SMALL)


def nuplan(raw: Path) -> Reader:
    """One log and its map."""
    nuplan_files.folder(raw)
    return READERS["nuplan"](**drone_files.SMALL)


def sumo(raw: Path) -> Reader:
    """One simulation."""
    drone_files.write_sumo(raw / "val" / "fcd.xml")
    return READERS["sumo"](**drone_files.SMALL)


def vci(raw: Path) -> Reader:
    """One clip."""
    drone_files.write_vci(raw / "dut")
    return READERS["vci"](frame_rate=20.0, **drone_files.SMALL)


def trajnetpp(raw: Path) -> Reader:
    """One file of two scenes, and one at 2 Hz."""
    drone_files.write_trajnet(raw / "train" / "hotel.ndjson")
    drone_files.write_trajnet(raw / "train" / "wildtrack.ndjson", fps=2.0, interval=5)
    return READERS["trajnetpp"]()


def interaction(raw: Path) -> Reader:
    """A recording of three windows, two cases, and their map."""
    interaction_files.folder(raw)
    return READERS["interaction"]()


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
    lane = {"points": [[0.0, 0.0], [9.0, 0.0]]}
    tables.write_lanes(raw / "val" / "packed.lanes.geojson", area, lane, geojson=True)
    return READERS["table"](num_history=5, num_future=5)


def sdd(raw: Path) -> Reader:
    """The same tracks as a scene of the parquet file, as a text file and as boxes."""
    rows = []
    for agent in range(2):
        for step in range(20):
            rows.append((agent, step, 9.5 * step + 40 * agent, 100.0 - 3 * agent))
    (raw / "train").mkdir(parents=True)
    agents, steps, x, y = zip(*rows, strict=True)
    columns = {
        "split": pa.array(["train"] * len(rows)).dictionary_encode(),
        "scene": [7] * len(rows),
        "agent": list(agents),
        "step": list(steps),
        "x": list(x),
        "y": list(y),
    }
    pq.write_table(pa.table(columns), raw / "sdd.parquet")
    lines = [f"{12 * step} {agent} {x} {y}\n" for agent, step, x, y in rows]
    (raw / "train" / "gates_0.txt").write_text("".join(lines))
    boxes = []
    for agent, step, x, y in rows:
        box = (x - 10, y - 8, x + 10, y + 8)
        words = (agent, *box, 12 * step, 0, 0, 0, '"Biker"')
        boxes.append(" ".join(map(str, words)))
    annotations = raw / "annotations" / "gates" / "video0" / "annotations.txt"
    annotations.parent.mkdir(parents=True)
    annotations.write_text("\n".join(boxes) + "\n")
    return READERS["sdd"]()


def nuscenes_prediction(raw: Path) -> Reader:
    """One scene with two sample times, and a map with a road along x and a divider."""
    labels = raw / "label" / "train" / "scene-0001.txt"
    labels.parent.mkdir(parents=True)
    (raw / "map_0.1").mkdir()
    rows = []
    for frame in range(17):
        x = 700 + 4.5 * frame
        y = 1504.0 - frame
        rows.append(_nuscenes_row(frame, 1, "Car", (x, 1500.0, 0.0), frame in (3, 4)))
        rows.append(_nuscenes_row(frame, 2, "Bus", (760.0, y, -np.pi / 2), False))
    labels.write_text("\n".join(rows) + "\n")
    raster = np.zeros((600, 450, 3), np.uint8)  # 200 m along x, 150 m along y, from (620, 1420)
    raster[:, 210:270, 2] = 255  # y from 1490 to 1510
    raster[60:540, 239:242, 0] = 255  # y = 1500, x from 640 to 800
    Image.fromarray(raster).save(raw / "map_0.1" / "scene-0001.png")
    (raw / "map_0.1" / "meta_scene-0001.txt").write_text("620.00\n1420.00\n3.00\n")
    return READERS["nuscenes_prediction"]()


def waymo(raw: Path) -> Reader:
    """A file with a scene and a scene without a future."""
    contents = (waymo_records.scenario("a"), waymo_records.scenario("b", steps=11))
    waymo_records.write(raw / "training" / "training.tfrecord", *contents)
    return READERS["waymo"]()


def _nuscenes_row(
    frame: int, agent: int, kind: str, pose: tuple[float, float, float], is_target: bool
) -> str:
    """A row of a label file: a box of 1.9 m x 1.6 m x 4.5 m at a pose (x, y, yaw)."""
    x, y, yaw = pose
    unused = [-1] * 7
    words = [frame, agent, kind, *unused, 1.9, 1.6, 4.5, x, 0.9, y, yaw, float(is_target)]
    return " ".join(map(str, words))


FOLDERS: dict[str, Callable[[Path], Reader]] = {}
for _name in built_in_readers():
    if _name in globals():
        FOLDERS[_name] = globals()[_name]
