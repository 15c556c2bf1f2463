"""The INTERACTION protocol: metrics from csv files, closed forms, challenge file and command."""

import csv
import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import interaction as files
from support.cli import error_line, run
from support.interaction_reference import Case, Tracks, metrics_of_case

from trajformer.cli.protocols import read_cases
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import track_forecasts
from trajformer.evaluation.protocols import interaction as protocol
from trajformer.evaluation.protocols import interaction_challenge
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.scene import Scene

MODEL = "constant_velocity_sampled"


# ---- metrics on real cases ---------------------------------------------------------------------


def read_tracks(path: Path, location: str) -> dict[str, Tracks]:
    """The rows of a csv file by scene id, track and frame."""
    scenes: dict[str, Tracks] = defaultdict(lambda: defaultdict(dict))
    for row in csv.DictReader(path.read_text().splitlines()):
        case = int(float(row["case_id"]))
        frame = int(row["frame_id"])
        scenes[f"{location}-{case}"][row["track_id"]][frame] = row
    return scenes


def read_forecasts(
    predictor: Predictor, case_set: protocol.CaseSet
) -> dict[str, dict[str, np.ndarray]]:
    """The six most probable modes [6, 30, 2] by scene and track."""
    forecasts: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for track in track_forecasts(predictor, case_set):
        best = np.argsort(-track.probability, kind="stable")[:6]
        forecasts[track.scene_id][track.track_id] = track.position[best]
    return forecasts


def test_metrics_equal_those_of_a_script_on_the_csv_files(interaction_slice: Path) -> None:
    predictor = load_predictor(MODEL)
    collision_rates = set[float]()
    for case_set in list(read_cases(interaction_slice))[:4]:
        location = case_set.split
        tracks = read_tracks(interaction_slice / "val" / f"{location}_val.csv", location)
        forecasts = read_forecasts(predictor, case_set)
        for outcome in protocol.outcomes(predictor, case_set, progress=False):
            scene_id = outcome.scene.scene_id
            metrics = protocol.case_metrics(outcome)
            for target_set in protocol.TARGET_SETS:
                is_hpnet = target_set == "HPNet"
                case = Case(tracks[scene_id], forecasts[scene_id], is_hpnet)
                expected = metrics_of_case(case)
                assert metrics[target_set] == pytest.approx(expected, abs=1e-4)
                collision_rates.add(expected["cross_collision_rate"])
    assert len(collision_rates) > 1, "the comparison must not be about zeros only"


# ---- closed forms ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "along", "across", "expected"),
    [
        # below 1.4 m/s: 1 m in both directions
        (0.0, 0.99, 0.0, False),
        (0.0, 1.01, 0.0, True),
        (0.0, 0.0, -1.01, True),
        # half-way to 11 m/s: 1.5 m lengthways
        (6.2, 1.49, 0.99, False),
        (6.2, -1.51, 0.0, True),
        # above 11 m/s: 2 m lengthways
        (30.0, 1.99, 0.0, False),
        (30.0, 2.01, 0.0, True),
        (30.0, 0.0, 1.01, True),
    ],
)
def test_a_miss_depends_on_speed_and_direction(
    speed: float, along: float, across: float, expected: bool
) -> None:
    heading = 2.0
    forward = np.array([math.cos(heading), math.sin(heading)])
    left = np.array([-math.sin(heading), math.cos(heading)])
    error = along * forward + across * left
    missed = protocol.missed(error[None, None], np.array([heading]), np.array([speed]))
    assert missed.tolist() == [[expected]]


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
    """The outer circles of a car are length - width apart and touch at 2 width / sqrt(3.8)."""
    width = 1.8
    assert expected == (gap < length - width + 2 * width / math.sqrt(3.8))
    position = np.zeros((2, 1, 3, 2))
    position[1, 0, :, 0] = [gap + 20, gap, gap + 20]
    heading = np.zeros((2, 1, 3))
    size = np.array([[length, width], [length, width]])
    queue = protocol.Paths(position, heading, size)
    pair = np.array([[0], [1]])
    assert protocol.cars_touch(queue, queue, pair).tolist() == [[expected]]

    side_by_side = queue._replace(heading=np.full_like(heading, math.pi / 2))
    assert not protocol.cars_touch(side_by_side, side_by_side, pair).any()


def test_means_are_over_cases() -> None:
    def case(value: float, cars: int) -> protocol.CaseMetrics:
        metrics = dict.fromkeys(protocol.METRICS, value)
        return {"FJMP": metrics | {"num_cars": cars}}

    means = protocol.summarize({"A": [case(1.0, 9), case(2.0, 1)], "B": [case(6.0, 1)]})
    assert means["FJMP"]["A"]["minJointFDE"] == 1.5
    assert means["FJMP"]["mean"]["minJointFDE"] == 3.0
    assert means["FJMP"]["mean"]["num_cases"] == 3
    assert means["FJMP"]["mean"]["num_cars"] == 11
    assert means["HPNet"]["A"] == {"num_cases": 0, "num_cars": 0}


def with_other_future(scene: Scene) -> Scene:
    """The scene with the same 10 observed steps and other positions in the 30 future steps."""
    position = scene.position.copy()
    position[:, 10:] = position[:, 10:] * 3 + 1
    position[~scene.valid] = 0
    return replace(scene, position=position)


def test_forecasts_do_not_depend_on_the_future(tmp_path: Path) -> None:
    [case_set] = read_cases(files.folder(tmp_path))
    changed = replace(case_set, cases=[with_other_future(scene) for scene in case_set.cases])
    predictor = load_predictor(MODEL)
    outcomes = protocol.outcomes(predictor, case_set, progress=False)
    other_outcomes = protocol.outcomes(predictor, changed, progress=False)
    for outcome, other in zip(outcomes, other_outcomes, strict=True):
        assert len(outcome.row)
        assert np.array_equal(outcome.paths.position, other.paths.position)


# ---- challenge file ----------------------------------------------------------------------------


@pytest.fixture
def challenge_file(tmp_path: Path) -> Path:
    [case_set] = read_cases(files.folder(tmp_path / "raw"))
    outcomes = list(protocol.outcomes(load_predictor(MODEL), case_set, progress=False))
    path = tmp_path / f"{case_set.split}_sub.csv"
    interaction_challenge.write_challenge_file(path, outcomes)
    return path


def test_the_challenge_file_has_six_modes_of_all_complete_cars(challenge_file: Path) -> None:
    assert interaction_challenge.check_challenge_file(challenge_file) == 2  # car 1 of both cases
    rows = list(csv.DictReader(challenge_file.read_text().splitlines()))
    tracks = {(row["case_id"], row["track_id"]) for row in rows}
    assert tracks == {("1", "1"), ("3", "1")}
    assert list(rows[0])[-3:] == ["x6", "y6", "psi_rad6"]

    last = rows[29]
    assert last["frame_id"] == "40"
    assert last["timestamp_ms"] == "4000"
    x, y = files.CORNER
    end_of_car_1 = (x + 0.8 * 40, y)  # 8 m/s
    assert math.dist((float(last["x1"]), float(last["y1"])), end_of_car_1) < 2.0


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


# ---- command -----------------------------------------------------------------------------------


def test_the_command_prints_the_published_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = files.folder(tmp_path / "raw")
    assert run("benchmark", "interaction", "--data", raw) == 0
    printed = capsys.readouterr().out
    for text in ("HPNet", ".174/.558", ".194/.630", "12 locations"):
        assert text in printed


def test_the_command_writes_metrics_and_challenge_files(tmp_path: Path) -> None:
    raw = files.folder(tmp_path / "raw")
    table = tmp_path / "table.json"
    challenge = tmp_path / "challenge"
    command = ("benchmark", "interaction", "--data", raw)
    assert run(*command, "--json", table, "--export", challenge) == 0
    metrics = json.loads(table.read_text())["constant_velocity"]
    assert metrics["HPNet"]["mean"]["num_cars"] == 2
    assert metrics["FJMP"]["mean"]["num_cars"] == 4
    assert metrics["HPNet"]["mean"]["minJointADE"] < 1e-3  # the cars move with constant velocity
    assert (challenge / "constant_velocity" / f"{files.LOCATION}_sub.csv").is_file()


def test_wrong_commands_give_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("benchmark", "interaction")
    assert "arguments are required: --data" in error_line(capsys, *command)
    assert "no such folder" in error_line(capsys, *command, "--data", tmp_path / "missing")
    assert "no validation cases (expected RAW/" in error_line(capsys, *command, "--data", tmp_path)
    both = ("--data", tmp_path, "--model", "constant_velocity", "--checkpoint", tmp_path / "a.ckpt")
    assert "not allowed with argument --model" in error_line(capsys, *command, *both)
