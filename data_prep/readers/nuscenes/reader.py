"""Reader of nuScenes prediction in AgentFormer's text layout, 4 + 12 steps at 2 Hz, raster maps.

A scene of the store is one sample time of a nuScenes scene: all vehicles seen in the four steps up
to this time, with the official targets of the time as scored agents. So the targets of one time
share one encoding of their surroundings. A row with a one in its last column is an official target
(an instance and a sample of the challenge); its 12 future steps are recorded. The files hold only
vehicles that are a target at some time: no pedestrians, no other vehicles and not the ego vehicle.

The map is a raster of 3 pixels per metre, cropped 75 m around the tracks: rows are x, columns are
y. Blue is the drivable area, green the dividers of roads and red the dividers of lanes. Borders of
the drivable area become polylines of the kind ROAD_EDGE, dividers polylines of the kind ROAD_LINE;
both have no direction. Lanes are the paths that vehicles of other training scenes have driven
(`paths.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.reader import Input
from data_prep.readers import columns
from data_prep.readers.nuscenes.labels import read_labels
from data_prep.readers.nuscenes.paths import driven_paths
from data_prep.readers.nuscenes.raster import trace_map
from data_prep.readers.raw_file import list_parts
from trajformer.config import Config
from trajformer.errors import SceneError
from trajformer.scenes.kinematics import difference_velocity
from trajformer.scenes.plausibility import check_recorded
from trajformer.scenes.scene import AgentRole, Scene
from trajformer.scenes.vector_map import joined

PERIOD_S = 0.5
NUM_HISTORY = 4
NUM_FUTURE = 12


@dataclass(frozen=True)
class NuscenesPrediction(Config, limits={"map_radius_m": (0, np.inf)}):
    """Reader of the nuScenes prediction benchmark.

    Attributes:
        map_radius_m: polylines within this distance of a scored agent are kept.
        driven_paths: lanes are paths of vehicles of other recordings of the training part, which
            show the directions of travel, so RAW needs this part for all splits; without them,
            there are no lanes.
    """

    map_radius_m: float = 80.0
    driven_paths: bool = True
    name: ClassVar[str] = "nuscenes_prediction"
    layout: ClassVar[str] = (
        "RAW/label/<split>/<scene>.txt, RAW/map_0.1/<scene>.png and RAW/map_0.1/meta_<scene>.txt"
    )
    published: ClassVar[dict[str, int]] = {"train": 10_822, "val": 3_790, "test": 3_076}

    def splits(self, raw: Path) -> list[str]:
        """Folders with label files.

        train, val and test are the official splits train, train_val and val.
        """
        return sorted({path.parent.name for path in raw.glob("label/[!.]*/[!.]*.txt")})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Sample times with a target, by file and frame; the frame is the part of the input."""
        return list_parts(
            sorted((raw / "label" / split).glob("[!.]*.txt")),
            lambda path: read_labels(path).target_frames(),
        )

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a folder holds the maps."""
        return path.name == "map_0.1"

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one sample time; SceneError also if the future of a target is incomplete."""
        labels = read_labels(item.path)
        name = item.path.stem
        if not item.part:
            labels.target_frames()
            raise SceneError(f"{item.path}: the input names no frame")

        # Rows of the sample time and of the steps around it become arrays [A, T].
        now = int(item.part)
        last = NUM_HISTORY - 1  # the last observed step
        first_frame = now - last
        rows = columns.rows_between(labels.frame, first_frame, now + NUM_FUTURE + 1)
        instance, agent = np.unique(labels.agent[rows], return_inverse=True)
        instance_id = [str(number) for number in instance.tolist()]
        step = labels.frame[rows] - first_frame
        num_steps = NUM_HISTORY + NUM_FUTURE
        cell, valid = columns.cells(instance_id, agent, step, num_steps, str(item))

        # Agents that appear only in the future would leak it.
        observed = np.flatnonzero(valid[:, :NUM_HISTORY].any(1))

        def grid(values: np.ndarray) -> np.ndarray:
            return columns.fill(valid, cell, values[rows])[observed]

        position = grid(labels.position)
        heading = grid(labels.yaw)
        kind = grid(labels.kind)
        target = grid(labels.target)
        agent_id = [instance_id[index] for index in observed]
        valid = valid[observed]
        scored = target[:, last] == 1
        incomplete = scored & ~valid[:, last:].all(1)
        if incomplete.any():
            index = incomplete.argmax()
            steps = int(valid[index, NUM_HISTORY:].sum())
            raise SceneError(
                f"{item}: target {agent_id[index]} has {steps} of {NUM_FUTURE} future steps"
            )

        last_position = position[:, last]
        folder = raw / "map_0.1"
        raster = folder / f"{name}.png"
        meta = folder / f"meta_{name}.txt"
        lines, corners = trace_map(raster, meta)
        outside = ((last_position < corners[0]) | (last_position > corners[1])).any(1) & scored
        if outside.any():
            outside_id = agent_id[outside.argmax()]
            raise SceneError(
                f"{item}: target {outside_id} is outside the raster map_0.1/{name}.png; "
                "get the raster and the meta file of this scene"
            )
        if self.driven_paths:
            training = raw / "label" / "train"
            if not training.is_dir():
                raise SceneError(
                    f"{training}: no such folder, but driven paths are those of the training "
                    "part; get it, or add --driven-paths false"
                )
            lines = joined(driven_paths(item.path, raster, meta, training), lines)
        lines = lines.near(last_position[scored], self.map_radius_m, raster)
        velocity = difference_velocity(position, valid, NUM_HISTORY, PERIOD_S)
        center = last_position[scored].mean(0)
        role = np.where(scored, int(AgentRole.SCORED), int(AgentRole.CONTEXT)).astype(np.uint8)
        agents = columns.Agents(
            agent_id=agent_id,
            kind=kind.max(1).astype(np.uint8),  # invalid steps are zero
            role=role,
            position=position,
            heading=heading,
            velocity=velocity,
            valid=valid,
        )
        clock = (PERIOD_S, NUM_HISTORY, NUM_FUTURE)
        scene = agents.scene((f"{name}-{now}", self.name, split, name), clock, center, lines)
        check_recorded(scene, heading=True, where=item)
        return scene
