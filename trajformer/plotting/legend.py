"""The legend below a picture."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox

from trajformer.plotting import style

BELOW_INCHES = 0.42  # from the axes to the legend: ticks and the name of the axis
_COLUMNS = (
    ("focal agent", "scored agent", "other agent", "ego vehicle", "seen until shortly before"),
    (
        "forecast (focal)",
        "forecast (others)",
        "forecast",
        "forecasts by agent",
        "forecasts by type",
        "recorded future",
    ),
    ("vehicle lane", "bus lane", "bike lane", "crosswalk", "road edge", "road line"),
)
_WORLDS = 1  # the column with the names of worlds
_KINDS = 0  # the column with the names of types


def add_legend(ax: Axes, kinds: Mapping[str, str] | None = None) -> Axes:
    """Add a legend below the axes; it names each kind of artist inside the limits once.

    `kinds` are names and colors of types of agents, which replace the entry of scored agents.
    """
    entries = _visible_entries(ax)
    known = {name for group in _COLUMNS for name in group}
    groups = [list(group) for group in _COLUMNS]
    groups[_WORLDS] = sorted(set(entries) - known) + groups[_WORLDS]
    if kinds:
        entries.pop("scored agent", None)
        for name, color in kinds.items():
            entries[name] = Patch(facecolor=color, edgecolor=style.INK, linewidth=0.5)
        groups[_KINDS] = [*kinds, *groups[_KINDS]]
    columns = []
    for group in groups:
        visible = [name for name in group if name in entries]
        if visible:
            columns.append(visible)
    if not columns:
        return ax
    # matplotlib fills columns of equal length, so short ones end with empty entries
    rows = max(len(column) for column in columns)
    names: list[str] = []
    for column in columns:
        names += column + [""] * (rows - len(column))
    empty = Line2D([], [], linestyle="none")
    figure = ax.get_figure(root=True)
    assert figure is not None, "a legend needs an Axes with a figure"
    inches = ax.get_window_extent().height / figure.dpi
    ax.legend(
        [entries.get(name, empty) for name in names],
        names,
        loc="upper center",
        bbox_to_anchor=(0.5, -BELOW_INCHES / inches),
        borderaxespad=0.0,
        ncols=len(columns),
        fontsize=style.SMALL_PT,
        frameon=False,
        columnspacing=1.2,
        handletextpad=0.5,
        labelspacing=0.35,
    )
    return ax


def _visible_entries(ax: Axes) -> dict[str, Artist]:
    """The first artist of each label that is inside the limits."""
    view = Bbox(np.transpose([ax.get_xlim(), sorted(ax.get_ylim())]))
    entries: dict[str, Artist] = {}
    artist: Any
    for artist, name in zip(*ax.get_legend_handles_labels(), strict=True):
        filled = isinstance(artist, Collection)
        paths = artist.get_paths() if filled else [artist.get_path()]
        if any(path.intersects_bbox(view, filled=filled) for path in paths):
            entries.setdefault(name, artist)
    return entries
