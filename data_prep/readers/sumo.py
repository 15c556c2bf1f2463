"""Reader of `fcd-output` of the traffic simulator SUMO: vehicles and persons by time step.

Angles are degrees clockwise from north, and positions are the middle of the front bumper: the file
has no lengths, so they stay there. Velocities are the speed along the angle. The file names no
roads, and files with longitudes and latitudes (`--fcd-output.geo`) are refused.
"""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.readers.track_files import Recorded, columns_of, with_velocity
from data_prep.readers.xml_files import XmlFiles
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.parsed_file import xml_elements

MAX_BYTES = 1 << 30
_KINDS = {"vehicle": "vehicle", "person": "pedestrian", "container": "static"}
_TYPES = {"DEFAULT_BIKETYPE": "cyclist", "bus": "bus", "bicycle": "cyclist"}
_TYPES |= {"motorcycle": "motorcyclist", "bike_bicycle": "cyclist", "bus_bus": "bus"}


@dataclass(frozen=True)
class Sumo(XmlFiles):
    """Reader of SUMO fcd-output.

    Attributes:
        period_s: seconds between steps. Files with other time steps are interpolated.
        num_history: observed steps of a window.
        num_future: steps to predict.
        stride: steps between the starts of windows.
        map_radius_m: without effect, because the files have no lanes.
    """

    name: ClassVar[str] = "sumo"
    layout: ClassVar[str] = "RAW/<split>/*.xml, or RAW/*.xml, written by sumo --fcd-output"

    def tracks(self, *files: Path) -> Recorded:
        """The rows of a file, see `TrackFiles`."""
        path = files[0]
        rows = _Rows()
        try:
            for step in xml_elements(path, MAX_BYTES, ("timestep",)):
                rows.add(step)
                step.clear()  # frees memory
        except (ElementTree.ParseError, ValueError, OSError) as error:
            raise SceneError(f"{path}: not an fcd-output of SUMO: {one_line(error)}") from error
        if not rows.values:
            problem = next(iter(rows.dropped), "no vehicle and no person")
            raise SceneError(f"{path}: timestep: {problem}")
        report_dropped(path, rows.dropped)
        time, x, y, angle, speed = np.array(rows.values, np.float64).T
        number = {"timestamp": time, "x": x, "y": y, "heading": np.deg2rad(90.0 - angle)}
        columns = columns_of(with_velocity(number, speed), rows.track, rows.kind)
        # SUMO writes times with two decimals.
        is_on_step = np.abs(time / self.period_s - np.rint(time / self.period_s)) < 1e-3
        return Recorded(columns, is_resampled=not bool(is_on_step.all()))


class _Rows:
    """The rows of all time steps; unusable elements are counted in `dropped`."""

    def __init__(self) -> None:
        self.track: list[str] = []
        self.kind: list[str] = []
        self.values: list[tuple[float, ...]] = []
        self.dropped = Counter[str]()

    def add(self, step: ElementTree.Element) -> None:
        """Add the vehicles and persons of a time step."""
        try:
            time = _number(step, "time")
        except ValueError as error:
            self.dropped[f"timestep: {one_line(error)}"] += 1
            return
        for element in step:
            if element.tag not in _KINDS:
                continue
            try:
                values = [_number(element, name) for name in ("x", "y", "angle", "speed")]
                track = element.attrib["id"].strip()
            except (ValueError, KeyError) as error:
                self.dropped[f"{element.tag}: {one_line(error)}"] += 1
                continue
            self.track.append(track)
            self.kind.append(_TYPES.get(element.get("type", ""), _KINDS[element.tag]))
            self.values.append((time, *values))


def _number(element: ElementTree.Element, name: str) -> float:
    value = float(element.get(name, "nan"))
    if not abs(value) < 1e9:
        raise ValueError(f"{name}: expected a number")
    return value
