"""Recordings as live tracks: scenes of a store, and sensor logs of Argoverse 2."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.scenes.scene import SHORT_LOSS_S, AgentKind, Scene
from trajformer.scenes.vector_map import VectorMap

if TYPE_CHECKING:
    from trajformer.scenes.store import SceneStore

_KIND_NAMES = [kind.name for kind in AgentKind]


class Recording(NamedTuple):
    """A tracks over T steps, and their map.

    Attributes:
        name: of the scene or log.
        lanes: in the frame of the positions.
        agent_id: A ids.
        kind: uint8 [A], AgentKind.
        position: float64 [A, T, 2], metres.
        heading: float64 [A, T], radians.
        velocity: float64 [A, T, 2], m/s, NaN if it is not known yet.
        valid: bool [A, T].
        period_s: seconds between two steps.
        num_observed: steps that are played.
    """

    name: str
    lanes: VectorMap
    agent_id: tuple[str, ...]
    kind: np.ndarray
    position: np.ndarray
    heading: np.ndarray
    velocity: np.ndarray
    valid: np.ndarray
    period_s: float
    num_observed: int

    def tracks(self, step: int) -> dict[str, Any]:
        """The tracks of a step, as `OnlineForecaster.update` needs them."""
        rows = self.valid[:, step].nonzero()[0]
        return {
            "object_id": [self.agent_id[row] for row in rows.tolist()],
            "x": self.position[rows, step, 0],
            "y": self.position[rows, step, 1],
            "heading": self.heading[rows, step],
            "vx": self.velocity[rows, step, 0],
            "vy": self.velocity[rows, step, 1],
            "classification": [_KIND_NAMES[kind] for kind in self.kind[rows].tolist()],
        }


def recordings_of_store(scenes: "SceneStore") -> Iterator[Recording]:
    """The observed steps of each scene."""
    from trajformer.scenes.lane_files import as_vector_map

    for index in range(len(scenes)):
        scene: Scene = scenes[index]
        yield Recording(
            name=scene.scene_id,
            lanes=as_vector_map(scene),
            agent_id=scene.agent_id,
            kind=scene.agent_kind,
            position=scene.position + scene.origin,
            heading=scene.heading.astype(np.float64),
            velocity=scene.velocity.astype(np.float64),
            valid=scene.valid,
            period_s=scene.period_s,
            num_observed=scene.num_history,
        )


def recordings_of_logs(raw: Path) -> Iterator[Recording]:
    """The complete sensor logs of a folder, or one log (TrajformerError: no log)."""
    from data_prep.readers.argoverse2.sensor import ANNOTATIONS, PERIOD_S, load_log
    from trajformer.scenes.kinematics import difference_velocity

    paths: set[Path] = set()
    for name in ANNOTATIONS:
        for pattern in (name, f"*/{name}", f"*/*/{name}"):
            paths |= set(raw.glob(pattern))
    if not paths:
        raise TrajformerError(
            f"{raw}: neither a store of `trajformer preprocess` nor a folder of Argoverse 2 sensor "
            f"logs (*/{ANNOTATIONS[0]})"
        )
    for path in sorted(paths):
        log = load_log(path)
        num_steps = log.valid.shape[1]
        velocity = difference_velocity(log.position, log.valid, num_steps, PERIOD_S)
        velocity[~_follows(log.valid, PERIOD_S)] = np.nan
        yield Recording(
            name=path.parent.name,
            lanes=log.lanes,
            agent_id=log.agent_id,
            kind=log.kind,
            position=log.position,
            heading=log.heading,
            velocity=velocity,
            valid=log.valid,
            period_s=PERIOD_S,
            num_observed=num_steps,
        )


def _follows(valid: np.ndarray, period_s: float) -> np.ndarray:
    """Whether a valid step follows another one within a second, bool [A, T].

    Only then a tracker knows a velocity: at the first step of a track, a difference of positions
    would need the next step.
    """
    steps = np.arange(valid.shape[1])
    latest = np.maximum.accumulate(np.where(valid, steps, -1), 1)
    previous = np.concatenate([np.full((len(valid), 1), -1), latest[:, :-1]], 1)
    is_recent = (steps - previous) * period_s < SHORT_LOSS_S
    follows: np.ndarray = valid & (previous >= 0) & is_recent
    return follows
