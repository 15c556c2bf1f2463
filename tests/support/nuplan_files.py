"""A small log and a map of nuPlan with the published schema."""

import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trajformer.scenes.utm import utm

PLACE = "us-nv-las-vegas-strip"
ZONE = 11
CLOUDS = 25  # at 20 Hz
# The tables that the reader uses, with the columns of the published schema.
SCHEMA = """
CREATE TABLE log (token BLOB NOT NULL PRIMARY KEY, vehicle_name VARCHAR(64), date VARCHAR(64),
 timestamp INTEGER, logfile VARCHAR(64), location VARCHAR(64), map_version VARCHAR(64));
CREATE TABLE ego_pose (token BLOB NOT NULL PRIMARY KEY, timestamp INTEGER, x FLOAT, y FLOAT,
 z FLOAT,
 qw FLOAT, qx FLOAT, qy FLOAT, qz FLOAT, vx FLOAT, vy FLOAT, vz FLOAT, acceleration_x FLOAT,
 acceleration_y FLOAT, acceleration_z FLOAT, angular_rate_x FLOAT, angular_rate_y FLOAT,
 angular_rate_z FLOAT, epsg INTEGER, log_token BLOB NOT NULL);
CREATE TABLE lidar_pc (token BLOB NOT NULL PRIMARY KEY, next_token BLOB, prev_token BLOB,
 ego_pose_token BLOB NOT NULL, lidar_token BLOB NOT NULL, scene_token BLOB, filename VARCHAR(128),
 timestamp INTEGER);
CREATE TABLE category (token BLOB NOT NULL PRIMARY KEY, name VARCHAR(64), description TEXT);
CREATE TABLE track (token BLOB NOT NULL PRIMARY KEY, category_token BLOB NOT NULL, width FLOAT,
 length FLOAT, height FLOAT);
CREATE TABLE lidar_box (token BLOB NOT NULL PRIMARY KEY, lidar_pc_token BLOB NOT NULL,
 track_token BLOB NOT NULL, next_token BLOB, prev_token BLOB, x FLOAT, y FLOAT, z FLOAT,
 width FLOAT, length FLOAT, height FLOAT, vx FLOAT, vy FLOAT, vz FLOAT, yaw FLOAT,
 confidence FLOAT);
CREATE TABLE scenario_tag (token BLOB NOT NULL PRIMARY KEY, lidar_pc_token BLOB NOT NULL,
 type VARCHAR(64), agent_track_token BLOB);
CREATE TABLE traffic_light_status (token BLOB NOT NULL PRIMARY KEY, lidar_pc_token BLOB NOT NULL,
 lane_connector_id INTEGER NOT NULL, status VARCHAR(8) NOT NULL);
"""
MAP_SCHEMA = """
CREATE TABLE gpkg_geometry_columns (table_name TEXT, column_name TEXT, geometry_type_name TEXT,
 srs_id INTEGER, z TINYINT, m TINYINT);
CREATE TABLE meta (fid INTEGER PRIMARY KEY, key TEXT, value TEXT);
CREATE TABLE baseline_paths (fid INTEGER PRIMARY KEY, geom BLOB, lane_fid REAL,
 lane_connector_fid REAL);
CREATE TABLE lanes_polygons (fid INTEGER PRIMARY KEY, geom BLOB, lane_fid INTEGER,
 lane_group_fid INTEGER, lane_index INTEGER, speed_limit_mps REAL);
CREATE TABLE lane_connectors (fid INTEGER PRIMARY KEY, geom BLOB, exit_lane_fid INTEGER,
 entry_lane_fid INTEGER, traffic_light_stop_line_fids TEXT);
CREATE TABLE crosswalks (fid INTEGER PRIMARY KEY, geom BLOB);
CREATE TABLE generic_drivable_areas (fid INTEGER PRIMARY KEY, geom BLOB);
"""
ORIGIN_DEGREES = (36.11, -115.17)  # latitude and longitude
_LAYERS = ("baseline_paths", "lanes_polygons", "lane_connectors", "crosswalks")
_LAYERS += ("generic_drivable_areas",)


def origin() -> np.ndarray:
    """UTM coordinates [2] of the first point of the map."""
    return utm(np.array(ORIGIN_DEGREES[0]), np.array(ORIGIN_DEGREES[1]), ZONE, is_south=False)


def token_of(kind: int, number: int) -> bytes:
    """A token of eight bytes."""
    return struct.pack(">II", kind, number)


def write_log(path: Path, clouds: int = CLOUDS) -> None:
    """The ego car to the east at 6 m/s, a car behind it, a pedestrian and a cone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = origin()
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)

    def insert(table: str, *values: object) -> None:
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    insert("log", token_of(0, 0), "veh", "2021-05-12", 0, "log", "las_vegas", PLACE)
    kinds = ("vehicle", "pedestrian", "traffic_cone")
    for number, name in enumerate(kinds):
        insert("category", token_of(1, number), name, "")
        insert("track", token_of(2, number), token_of(1, number), 1.8, 4.4, 1.5)
    places = ((-15.0, 6.0, 0.0), (20.0, 0.0, 1.5), (30.0, 0.0, 0.0))  # x, speeds along x and y
    for cloud in range(clouds):
        time = 1_620_000_000_000_000 + 50_000 * cloud + cloud % 3 * 200
        seconds = 0.05 * cloud
        pose = (x + 5 + 6 * seconds, y, 0.0, 1.0, 0.0, 0.0, 0.0, 6.0, 0.0, 0.0)
        insert(
            "ego_pose", token_of(3, cloud), time, *pose, 0, 0, 0, 0, 0, 0.0, 32611, token_of(0, 0)
        )
        insert(
            "lidar_pc", token_of(4, cloud), None, None, token_of(3, cloud), b"l", b"s", "f", time
        )
        for number, (start, speed_x, speed_y) in enumerate(places):
            position = (x + start + speed_x * seconds, y + 3 * number + speed_y * seconds, 0.0)
            box = token_of(5, 10 * cloud + number)
            size = (1.8, 4.4, 1.5)
            motion = (99.0, 99.0, 0.0, np.pi / 2 if number == 1 else 0.0, 0.9)
            tokens = (box, token_of(4, cloud), token_of(2, number), None, None)
            insert("lidar_box", *tokens, *position, *size, *motion)
        status = "red" if cloud < clouds // 2 else "green"
        insert("traffic_light_status", token_of(6, cloud), token_of(4, cloud), 30, status)
    connection.commit()
    connection.close()


def geometry(kind: int, points: Sequence[tuple[float, float]]) -> bytes:
    """A line (2) or polygon (3) of a GeoPackage, from metres east and north of the origin.

    Degrees follow from a flat approximation, which is exact to millimetres at the origin only.
    """
    latitude, longitude = ORIGIN_DEGREES
    step = 1e-5
    base = origin()
    east = utm(np.array(latitude), np.array(longitude + step), ZONE, is_south=False) - base
    north = utm(np.array(latitude + step), np.array(longitude), ZONE, is_south=False) - base
    degrees = np.linalg.solve(np.stack([east, north], 1), np.array(points).T).T * step
    corner = np.array([longitude, latitude])
    pairs = (degrees + corner).astype("<f8").tobytes()
    head = b"GP\0\1" + struct.pack("<i", 4326)
    body = struct.pack("<BI", 1, kind)
    if kind == 3:
        body += struct.pack("<I", 1)
    return head + body + struct.pack("<I", len(points)) + pairs


def write_map(path: Path) -> None:
    """Two parallel lanes, a connector behind the right one, a crosswalk and an area."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(MAP_SCHEMA)

    def insert(table: str, *values: object) -> None:
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    for layer in _LAYERS:
        insert("gpkg_geometry_columns", layer, "geom", "GEOMETRY", 4326, 0, 0)
    insert("meta", 1, "projectedCoordSystem", f"epsg:326{ZONE}")
    insert("baseline_paths", 1, geometry(2, [(0, 0), (40, 0)]), 10, None)
    insert("baseline_paths", 2, geometry(2, [(0, 3.5), (40, 3.5)]), 11, None)
    insert("baseline_paths", 3, geometry(2, [(40, 0), (60, 0)]), None, 30)
    ring = [(0.0, -2.0), (60.0, -2.0), (60.0, 6.0), (0.0, 6.0), (0.0, -2.0)]
    insert("lanes_polygons", 1, geometry(3, ring), 10, 5, 2, 13.4)
    insert("lanes_polygons", 2, geometry(3, ring), 11, 5, 1, 13.4)
    insert("lane_connectors", 30, geometry(3, ring), 10, 99, "7")
    insert("crosswalks", 1, geometry(3, ring))
    insert("generic_drivable_areas", 1, geometry(3, ring))
    connection.commit()
    connection.close()


def folder(raw: Path) -> None:
    """One log and its map."""
    write_log(raw / "mini" / "2021.05.12.log.db")
    write_map(raw / "maps" / PLACE / "9.15.1915" / "map.gpkg")
