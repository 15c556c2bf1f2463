"""Units, axes and words of tracks in a file, and their conversion to those of a scene.

A scene has metres (or pixels), y to the left of x, and headings in radians counter-clockwise from
+x. Recordings from above often have image coordinates, degrees or compass headings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from data_prep.readers.table.table_file import TableColumns
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import METRES, PIXELS

FOOT_M = 0.3048
_LENGTHS = ("x", "y", "vx", "vy", "length", "width")
_TURN = 2 * np.pi
_ROUNDING = 1e-6  # radians


@dataclass(frozen=True)
class Conventions:
    """How a file writes positions, headings and kinds.

    Attributes:
        unit: of lengths: `m`, `ft` or `px`.
        angle_unit: of headings: `rad` or `deg`.
        heading_from: direction of the heading 0: `east` is +x, `north` is +y of the scene.
        clockwise: headings increase clockwise, as seen from above.
        y_down: y increases downwards as in images, so that y and vy change their signs.
        columns: names in the file by the name of a table column, if they differ.
        optional: columns among these that a file may lack.
        kinds: kind of a table by word, in lower case; other words stay.
    """

    unit: str = METRES
    angle_unit: str = "rad"
    heading_from: str = "east"
    clockwise: bool = False
    y_down: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)

    @property
    def scene_unit(self) -> str:
        """Unit of the scene: feet become metres."""
        return PIXELS if self.unit == PIXELS else METRES

    def convert(self, columns: TableColumns) -> TableColumns:
        """The columns of a file in the units, axes and words of a scene."""
        number = dict(columns.number)
        if self.unit == "ft":
            for name in _LENGTHS:
                if name in number:
                    number[name] = number[name] * FOOT_M
        if self.y_down:
            for name in ("y", "vy"):
                if name in number:
                    number[name] = -number[name]
        if "heading" in number:
            number["heading"] = self._heading(number["heading"])
        word = dict(columns.word)
        if self.kinds and "kind" in word:
            word["kind"] = [self.kinds.get(kind.lower(), kind) for kind in word["kind"]]
        return replace(columns, number=number, word=word)

    def _heading(self, heading: np.ndarray) -> np.ndarray:
        """Headings [n] in radians; a value of over a turn stays one, which is an error later."""
        if self.angle_unit == "deg":
            heading = np.deg2rad(heading)
        if not (self.clockwise or self.heading_from == "north"):
            return heading
        with np.errstate(invalid="ignore"):
            is_usable = np.abs(heading) <= _TURN + _ROUNDING
        turned = np.where(is_usable, heading, 0.0)
        if self.clockwise:
            turned = -turned
        if self.heading_from == "north":
            turned = turned + np.pi / 2
        return np.where(is_usable, wrap(turned), heading)
