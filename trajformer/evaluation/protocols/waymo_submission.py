"""Files of the Waymo challenges: `MotionChallengeSubmission` messages, written and read back.

Field numbers as in `motion_submission.proto`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.evaluation.protocols.waymo import ScenePrediction
from trajformer.scenes import wire
from trajformer.scenes.files import atomically, read_file

MODES = 6
MOTION, INTERACTION = 1, 2  # types of submissions
MAX_BYTES = 8 << 30


class Prediction(NamedTuple):
    """The modes of a scene in a submission: S objects, one list of modes each or joint ones."""

    scenario_id: str
    object_id: tuple[int, ...]  # S
    confidence: np.ndarray  # float32 [S, K], or [1, K] of joint modes
    position: np.ndarray  # float32 [S, K, 16, 2], metres in the city frame


@contextmanager
def submission(path: Path, joint: bool) -> Iterator[Callable[[ScenePrediction], ScenePrediction]]:
    """A function that adds a scene to a submission and returns it; the file is complete at the end.

    The account and the name of the method are empty: the authors set them. The function raises
    TrajformerError if a track has no number as its id, or a scene has no pair.
    """
    with atomically(path) as temporary, temporary.open("wb") as file:

        def add(prediction: ScenePrediction) -> ScenePrediction:
            file.write(wire.write_bytes(1, _scene_message(prediction, joint)))
            return prediction

        yield add
        file.write(wire.write_number(2, INTERACTION if joint else MOTION))
        for number in (9, 10, 11):  # lidar, cameras and pretrained public models were not used
            file.write(wire.write_number(number, 0))


def _scene_message(prediction: ScenePrediction, joint: bool) -> bytes:
    scene = prediction.scene
    ids = []
    for row in prediction.row:
        name = scene.agent_id[row]
        if not name.isdecimal():
            raise TrajformerError(f"scene {scene.scene_id}: track {name!r}: not an object number")
        ids.append(int(name))
    if joint and len(ids) != 2:
        problem = f"{len(ids)} scored agents, a pair is needed"
        raise TrajformerError(f"scene {scene.scene_id}: {problem}")
    paths = [(each + scene.origin).astype("<f4") for each in prediction.position]
    confidence = [each.tolist() for each in prediction.confidence]
    content = wire.write_bytes(1, scene.scene_id.encode())
    inner = b""
    if joint:
        for mode in range(min(MODES, len(confidence[0]))):
            parts = b"".join(
                wire.write_bytes(2, wire.write_number(1, number) + _trajectory(path[mode], 2))
                for number, path in zip(ids, paths, strict=True)
            )
            inner += wire.write_bytes(1, parts + wire.write_float(3, confidence[0][mode]))
        return content + wire.write_bytes(3, inner)
    for number, path, scores in zip(ids, paths, confidence, strict=True):
        parts = wire.write_number(1, number)
        for mode in range(min(MODES, len(scores))):
            scored = _trajectory(path[mode], 1) + wire.write_float(2, scores[mode])
            parts += wire.write_bytes(2, scored)
        inner += wire.write_bytes(1, parts)
    return content + wire.write_bytes(2, inner)


def _trajectory(path: np.ndarray, number: int) -> bytes:
    """A field with a trajectory: packed x and y of points [16, 2]."""
    x, y = path.T
    packed = wire.write_bytes(2, x.tobytes()) + wire.write_bytes(3, y.tobytes())
    return wire.write_bytes(number, packed)


def read_submission(path: Path) -> Iterator[Prediction]:
    """The predictions of each scene of a submission (TrajformerError: not a submission)."""
    try:
        content = read_file(path, MAX_BYTES)
        for field in wire.read_fields(content, 0, len(content)):
            if field[0] == 1:
                yield _read_scene(content, *wire.read_span(field))
    except (OSError, wire.WireError) as error:
        raise TrajformerError(f"{path}: not a readable submission: {error}") from error


def _read_scene(content: bytes, start: int, end: int) -> Prediction:
    scenario_id = ""
    objects: dict[int, list[np.ndarray]] = {}
    confidence: list[list[float]] = []
    for field in wire.read_fields(content, start, end):
        first, last = wire.read_span(field)
        if field[0] == 1:
            scenario_id = content[first:last].decode()
        elif field[0] == 2:
            for each in wire.read_fields(content, first, last):
                number, scores, paths = _read_object(content, *wire.read_span(each))
                objects[number] = paths
                confidence.append(scores)
        elif field[0] == 3:
            scores = []
            for each in wire.read_fields(content, first, last):
                for number, path in _read_joint(content, *wire.read_span(each), scores):
                    objects.setdefault(number, []).append(path)
            confidence.append(scores)
    position = np.array(list(objects.values()), np.float32)
    return Prediction(scenario_id, tuple(objects), np.array(confidence, np.float32), position)


def _read_object(content: bytes, start: int, end: int) -> tuple[int, list[float], list[np.ndarray]]:
    """Number, confidences and paths of an object."""
    number = 0
    scores = []
    paths = []
    for field in wire.read_fields(content, start, end):
        if field[0] == 1:
            number = wire.read_number(field)
            continue
        for part in wire.read_fields(content, *wire.read_span(field)):
            if part[0] == 1:
                paths.append(_read_trajectory(content, *wire.read_span(part)))
            elif part[0] == 2:
                scores.append(wire.read_float(content, part))
    return number, scores, paths


def _read_joint(
    content: bytes, start: int, end: int, scores: list[float]
) -> Iterator[tuple[int, np.ndarray]]:
    """Number and path of each object of a joint mode; its confidence is appended to `scores`."""
    for field in wire.read_fields(content, start, end):
        if field[0] == 3:
            scores.append(wire.read_float(content, field))
            continue
        number = 0
        for part in wire.read_fields(content, *wire.read_span(field)):
            if part[0] == 1:
                number = wire.read_number(part)
            elif part[0] == 2:
                yield number, _read_trajectory(content, *wire.read_span(part))


def _read_trajectory(content: bytes, start: int, end: int) -> np.ndarray:
    """Points float32 [P, 2] of a trajectory with packed coordinates."""
    axes = []
    for field in wire.read_fields(content, start, end):
        first, last = wire.read_span(field)
        if (last - first) % 4:
            raise wire.WireError("a trajectory: no packed numbers of the type float")
        axes.append(np.frombuffer(content[first:last], "<f4"))
    return np.stack(axes, -1)


def check_complete(path: Path, expected: dict[str, set[int]]) -> None:
    """Raise TrajformerError unless a submission has 16 points of each object of each scene.

    `expected` are the numbers of the scored objects by scene.
    """
    seen = set()
    for prediction in read_submission(path):
        where = f"{path}: scene {prediction.scenario_id}"
        if prediction.scenario_id not in expected:
            raise TrajformerError(f"{where}: not in the data")
        if prediction.scenario_id in seen:
            raise TrajformerError(f"{where}: occurs twice")
        seen.add(prediction.scenario_id)
        if set(prediction.object_id) != expected[prediction.scenario_id]:
            numbers = sorted(expected[prediction.scenario_id])
            raise TrajformerError(f"{where}: objects {prediction.object_id}, expected {numbers}")
        if prediction.position.shape[2:] != (16, 2):
            problem = f"shape {prediction.position.shape}, expected 16 points"
            raise TrajformerError(f"{where}: trajectories of {problem}")
    missing = sorted(set(expected) - seen)
    if missing:
        raise TrajformerError(f"{path}: {len(missing)} scenes are missing, first {missing[0]}")
