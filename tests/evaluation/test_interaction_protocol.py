"""The INTERACTION protocol: figures from the csv files, closed forms, the challenge file, the command."""

import csv
import json
import math
from collections import defaultdict
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import interaction as files
from support.cli import error_line, run

from trajformer.cli.protocols import read_cases
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import track_forecasts
from trajformer.evaluation.protocols import interaction as protocol
from trajformer.evaluation.protocols import interaction_challenge
from trajformer.recipes.checkpoint import load_predictor

Row = dict[str, str]


def circles(
    x: float, y: float, heading: float, length: float, width: float
) -> list[tuple[float, float]]:
    ends = [(length - width) / 2 * sign for sign in (-1, 1)]
    offsets = (
        ends
        if length < 4
        else [0.0, *ends]
        if length < 8
        else [0.0, *ends, ends[0] / 2, ends[1] / 2]
    )
    return [(x + offset * math.cos(heading), y + offset * math.sin(heading)) for offset in offsets]


def touch(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    limit = (a[4] + b[4]) / math.sqrt(3.8)
    return any(math.dist(p, q) < limit for p in circles(*a) for q in circles(*b))


def directions(path: np.ndarray, x: float, y: float, heading: float) -> list[float]:
    """Headings along a path [30, 2]."""
    points = [(x, y), *map(tuple, path.tolist()), tuple(path[-1].tolist())]
    out = []
    for before, after in zip(points[:-2], points[2:], strict=True):
        if math.dist(before, after) >= 0.2:
            heading = math.atan2(after[1] - before[1], after[0] - before[0])
        out.append(heading)
    return out


def metrics_of_case(
    tracks: dict[str, dict[int, Row]], forecast: dict[str, np.ndarray], is_hpnet: bool
) -> dict[str, float]:
    """The figures of a case from its rows by track and frame, and forecasts [K, 30, 2] by track."""
    need = range(1, 41) if is_hpnet else (10, 40)
    cars = [
        name
        for name, rows in tracks.items()
        if rows[min(rows)]["agent_type"] == "car" and all(f in rows for f in need)
    ]
    worlds = range(len(forecast[cars[0]]))

    def at(name: str, frame: int, *fields: str) -> list[float]:
        return [float(tracks[name][frame][field]) for field in fields]

    known = {name: [f for f in range(11, 41) if f in tracks[name]] for name in cars}
    error = {
        (n, k, f): math.dist(forecast[n][k, f - 11], at(n, f, "x", "y"))
        for n in cars
        for k in worlds
        for f in known[n]
    }
    heading = {
        (n, k): directions(forecast[n][k], *at(n, 10, "x", "y", "psi_rad"))
        for n in cars
        for k in worlds
    }
    miss = {}
    for name in cars:
        x, y, vx, vy, psi = at(name, 40, "x", "y", "vx", "vy", "psi_rad")
        speed = math.hypot(vx, vy)
        limit = 1.0 if speed < 1.4 else 2.0 if speed > 11 else 1 + (speed - 1.4) / (11 - 1.4)
        for k in worlds:
            dx, dy = forecast[name][k, -1] - (x, y)
            along, across = (
                dx * math.cos(psi) + dy * math.sin(psi),
                dy * math.cos(psi) - dx * math.sin(psi),
            )
            miss[name, k] = abs(along) > limit or abs(across) > 1.0
    box = {name: at(name, 10, "length", "width") for name in cars}
    boxes = {
        (n, k): [(*forecast[n][k, f], heading[n, k][f], *box[n]) for f in range(30)]
        for n in cars
        for k in worlds
    }
    crash = [
        any(any(map(touch, boxes[a, k], boxes[b, k])) for a, b in combinations(cars, 2))
        for k in worlds
    ]
    ego_hits = []
    for ego in cars:
        truth = {f: (*at(ego, f, "x", "y", "psi_rad"), *box[ego]) for f in known[ego]}
        hit = [
            any(touch(truth[f], boxes[n, k][f - 11]) for n in cars if n != ego for f in truth)
            for k in worlds
        ]
        ego_hits.append(all(hit))
    ade = {(n, k): np.mean([error[n, k, f] for f in known[n]]) for n in cars for k in worlds}
    points = sum(map(len, known.values()))
    joint_ade = [sum(error[n, k, f] for n in cars for f in known[n]) / points for k in worlds]
    joint_fde = [float(np.mean([error[n, k, 40] for n in cars])) for k in worlds]
    joint_miss = [float(np.mean([miss[n, k] for n in cars])) for k in worlds]
    return {
        "minJointADE": min(joint_ade),
        "minJointFDE": min(joint_fde),
        "minJointMR": min(joint_miss),
        "consistent_minJointMR": min(
            [value for value, hit in zip(joint_miss, crash, strict=True) if not hit] or [1.0]
        ),
        "cross_collision_rate": float(np.mean(crash)),
        "best_world_collision_rate": float(crash[joint_fde.index(min(joint_fde))]),
        "ego_collision_rate": float(np.mean(ego_hits)),
        "minADE": float(np.mean([min(ade[n, k] for k in worlds) for n in cars])),
        "minFDE": float(np.mean([min(error[n, k, 40] for k in worlds) for n in cars])),
        "MR": float(np.mean([all(miss[n, k] for k in worlds) for n in cars])),
        "ADE_1": float(np.mean([ade[n, 0] for n in cars])),
        "FDE_1": float(np.mean([error[n, 0, 40] for n in cars])),
        "num_cars": len(cars),
    }


def test_figures_equal_those_of_a_script_on_the_csv_files(interaction_slice: Path) -> None:
    predictor = load_predictor("constant_velocity_sampled")
    crashes = set[float]()
    for case_set in list(read_cases(interaction_slice))[:4]:
        rows: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
        lines = (interaction_slice / "val" / f"{case_set.split}_val.csv").read_text().splitlines()
        for row in csv.DictReader(lines):
            rows[f"{case_set.split}-{float(row['case_id']):.0f}"][row["track_id"]][
                int(row["frame_id"])
            ] = row
        forecasts: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
        for track in track_forecasts(predictor, case_set):
            best = np.argsort(-track.probability, kind="stable")[:6]
            forecasts[track.scene_id][track.track_id] = track.position[best]
        for outcome in protocol.outcomes(predictor, case_set, progress=False):
            scene_id = outcome.scene.scene_id
            metrics = protocol.case_metrics(outcome)
            for name in protocol.TARGET_SETS:
                expected = metrics_of_case(rows[scene_id], forecasts[scene_id], name == "HPNet")
                assert metrics[name] == pytest.approx(expected, abs=1e-4)
                crashes.add(expected["cross_collision_rate"])
    assert len(crashes) > 1  # the comparison is not only about zeros


@pytest.mark.parametrize(
    ("speed", "along", "across", "expected"),
    [
        *((0.0, 0.99, 0.0, False), (0.0, 1.01, 0.0, True), (0.0, 0.0, -1.01, True)),
        *((6.2, 1.49, 0.99, False), (6.2, -1.51, 0.0, True)),
        *((30.0, 1.99, 0.0, False), (30.0, 2.01, 0.0, True), (30.0, 0.0, 1.01, True)),
    ],
)
def test_a_miss_depends_on_speed_and_direction(
    speed: float, along: float, across: float, expected: bool
) -> None:
    heading = 2.0
    cos, sin = math.cos(heading), math.sin(heading)
    error = np.array([[[along * cos - across * sin, along * sin + across * cos]]])
    assert protocol.missed(error, np.array([heading]), np.array([speed])).tolist() == [[expected]]


@pytest.mark.parametrize(
    ("length", "gap", "expected"),
    [
        (4.5, 4.60, False),
        (4.5, 4.53, True),
        (3.9, 4.00, False),
        (3.9, 3.94, True),
        (10.0, 10.10, False),
        (10.0, 10.02, True),
    ],
)
def test_cars_in_a_queue_collide_by_their_circles(
    length: float, gap: float, expected: bool
) -> None:
    # the centres of the first and the last circle are length - width apart, and touch at 2 width / sqrt(3.8)
    position = np.zeros((2, 1, 3, 2))
    position[1, 0, :, 0] = [gap + 20, gap, gap + 20]
    paths = protocol.Paths(position, np.zeros((2, 1, 3)), np.array([[length, 1.8]] * 2))
    exact = gap < length - 1.8 + 3.6 / math.sqrt(3.8)
    assert (
        protocol.cars_touch(paths, paths, np.array([[0], [1]])).tolist()
        == [[expected]]
        == [[exact]]
    )
    crossing = paths._replace(heading=np.full_like(paths.heading, math.pi / 2))
    assert not protocol.cars_touch(crossing, crossing, np.array([[0], [1]])).any()  # side by side


def test_means_are_over_cases() -> None:
    def case(value: float, cars: int) -> dict[str, dict[str, float]]:
        return {"FJMP": dict.fromkeys(protocol.METRICS, value) | {"num_cars": cars}}

    means = protocol.summarize({"A": [case(1.0, 9), case(2.0, 1)], "B": [case(6.0, 1)]})
    assert means["FJMP"]["A"]["minJointFDE"] == 1.5 and means["FJMP"]["mean"]["minJointFDE"] == 3.0
    assert (means["FJMP"]["mean"]["num_cases"], means["FJMP"]["mean"]["num_cars"]) == (3, 11)
    assert means["HPNet"]["A"] == {"num_cases": 0, "num_cars": 0}


def test_forecasts_do_not_depend_on_the_future(tmp_path: Path) -> None:
    [case_set] = read_cases(files.folder(tmp_path))
    predictor = load_predictor("constant_velocity_sampled")
    scenes = case_set.cases
    changed = [
        np.where(np.arange(40)[:, None] < 10, s.position, s.position * 3 + 1) * s.valid[..., None]
        for s in scenes
    ]
    cases = [
        replace(s, position=position.astype(np.float32))
        for s, position in zip(scenes, changed, strict=True)
    ]
    outcomes = (
        protocol.outcomes(predictor, part, progress=False)
        for part in (case_set, replace(case_set, cases=cases))
    )
    for left, right in zip(*outcomes, strict=True):
        assert np.array_equal(left.paths.position, right.paths.position) and len(left.row)


@pytest.fixture
def challenge_file(tmp_path: Path) -> Path:
    [case_set] = read_cases(files.folder(tmp_path / "raw"))
    path, predictor = (
        tmp_path / f"{case_set.split}_sub.csv",
        load_predictor("constant_velocity_sampled"),
    )
    interaction_challenge.write_challenge_file(
        path, list(protocol.outcomes(predictor, case_set, progress=False))
    )
    return path


def test_the_challenge_file_has_six_modes_of_all_complete_cars(challenge_file: Path) -> None:
    assert interaction_challenge.check_challenge_file(challenge_file) == 2  # car 1 of both cases
    rows = list(csv.DictReader(challenge_file.read_text().splitlines()))
    assert {(row["case_id"], row["track_id"]) for row in rows} == {("1", "1"), ("3", "1")}
    assert list(rows[0])[-3:] == ["x6", "y6", "psi_rad6"]
    expected = files.CORNER[0] + 0.8 * 40, files.CORNER[1]
    assert math.dist((float(rows[29]["x1"]), float(rows[29]["y1"])), expected) < 2.0
    assert (rows[29]["frame_id"], rows[29]["timestamp_ms"]) == ("40", "4000")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("psi_rad3", "psi", "psi_rad3: expected one column"),
        ("x6", "y6", "x6: expected one column"),
        (",40,4000,", ",41,4100,", "frame_id: expected one row for each of the frames 11 to 40"),
        (",40,4000,", ",40,4040,", "timestamp_ms: expected 100 \\* frame_id"),
        ("4000,1,0,", "4000,1,2,", "interesting_agent: expected 0 or 1"),
        ("4000,1,0,", "4000,1,0,nan", "x1|psi_rad"),
        ("\n", "\n1,2\n", "not a readable csv file"),
    ],
)
def test_a_wrong_challenge_file_is_refused(
    challenge_file: Path, old: str, new: str, reason: str
) -> None:
    content = challenge_file.read_text()
    assert old in content
    challenge_file.write_text(content.replace(old, new, 1))
    with pytest.raises(TrajformerError, match=reason):
        interaction_challenge.check_challenge_file(challenge_file)


def test_the_command_prints_and_writes_the_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, out = files.folder(tmp_path / "raw"), tmp_path / "table.json"
    words = (
        "benchmark",
        "interaction",
        "--data",
        raw,
        "--json",
        out,
        "--export",
        tmp_path / "challenge",
    )
    run(*words)
    printed = capsys.readouterr().out
    assert (
        "HPNet" in printed
        and ".174/.558" in printed
        and ".194/.630" in printed
        and "12 locations" in printed
    )
    metrics = json.loads(out.read_text())["constant_velocity"]
    assert metrics["HPNet"]["mean"]["num_cars"] == 2 and metrics["FJMP"]["mean"]["num_cars"] == 4
    assert metrics["HPNet"]["mean"]["minJointADE"] < 1e-3  # the cars move with constant velocity
    assert (tmp_path / "challenge" / "constant_velocity" / f"{files.LOCATION}_sub.csv").is_file()


def test_wrong_commands_give_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("benchmark", "interaction")
    assert "arguments are required: data" in error_line(capsys, *command)
    assert "no such folder" in error_line(capsys, *command, "--data", tmp_path / "missing")
    assert "no validation cases (expected RAW/" in error_line(capsys, *command, "--data", tmp_path)
    both = ("--data", tmp_path, "--model", "constant_velocity", "--checkpoint", tmp_path / "a.ckpt")
    assert "not allowed with argument --model" in error_line(capsys, *command, *both)
