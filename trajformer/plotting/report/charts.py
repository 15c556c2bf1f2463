"""Charts of a record as SVG.

They are written here, and not by matplotlib, because its SVG has style attributes, which the policy
of the page forbids, and one color for dark and light pages. Classes get colors from `style.css`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trajformer.evaluation.bootstrap import Estimate
from trajformer.plotting.report.markup import Markup, dashes, element, line, svg

WIDTH, HEIGHT = 400.0, 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 12.0, 26.0, 38.0
_MARKER = 4.0
_ROW = 30.0  # height of a row of the chart of differences
_NAMES = 130.0  # width of its names


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        file: number of the forecast file.
        x: float64 [n].
        y: n means with intervals.
        weight: float64 [n], share of the agents at each point; empty: not shown.
    """

    file: int
    x: np.ndarray
    y: Sequence[Estimate]
    weight: np.ndarray


@dataclass(frozen=True)
class _Axes:
    """The area of a chart, and the ranges of its values."""

    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Points [n, 2] of values x, y [n]."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        left = _LEFT + across * (WIDTH - _LEFT - _RIGHT)
        top = HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)
        return np.stack([left, top], -1)

    def frame(self, title: str, x_label: str) -> list[Markup]:
        """Grid, ticks and texts."""
        parts = [element("text", title, x=_LEFT, y=14, class_="chart-title")]
        for value in ticks(*self.y):
            _, y = self.place(np.array(self.x[0]), np.array(value)).tolist()
            parts.append(element("path", d=f"M{_LEFT:g} {y:.1f}H{WIDTH - _RIGHT:g}", class_="grid"))
            text = {"x": _LEFT - 6, "y": f"{y + 4:.1f}", "text_anchor": "end"}
            parts.append(element("text", f"{value:g}", **text))
        bottom = HEIGHT - _BOTTOM
        for value in ticks(*self.x):
            x, _ = self.place(np.array(value), np.array(self.y[0])).tolist()
            parts.append(element("path", d=f"M{x:.1f} {bottom:g}v4", class_="axis"))
            text = {"x": f"{x:.1f}", "y": bottom + 17, "text_anchor": "middle"}
            parts.append(element("text", f"{value:g}", **text))
        parts.append(element("path", d=f"M{_LEFT:g} {bottom:g}H{WIDTH - _RIGHT:g}", class_="axis"))
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        label = {"x": f"{middle:g}", "y": HEIGHT - 4, "text_anchor": "middle"}
        parts.append(element("text", x_label, **label))
        return parts


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round values of a range."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def horizon_chart(title: str, unit: str, series: Sequence[Series]) -> Markup:
    """Errors by horizon with their intervals as bands, from 0 s and 0."""
    largest = max(_high(estimate) for one in series for estimate in one.y)
    last = max(float(one.x.max()) for one in series)
    axes = _Axes((0.0, last), (0.0, largest * 1.05 or 1.0))
    parts = axes.frame(f"{title} ({unit})", "horizon (s)")
    for one in series:
        means = np.array([estimate.mean for estimate in one.y])
        low = np.array([_low(estimate) for estimate in one.y])
        high = np.array([_high(estimate) for estimate in one.y])
        band = np.concatenate([axes.place(one.x, low), axes.place(one.x, high)[::-1]])
        parts.append(element("path", d=line(band, closed=True), class_=f"band band-{one.file}"))
        points = axes.place(one.x, means)
        stroke = {"class_": f"file-{one.file}", "stroke_dasharray": dashes(one.file)}
        parts.append(element("path", d=line(points), **stroke))
        parts += [_dot(point, one.file) for point in points]
    return svg(WIDTH, HEIGHT, f"{title} by horizon; the numbers are in the table", *parts)


def reliability_chart(title: str, series: Series) -> Markup:
    """Share of nearest modes over the probability, with intervals; bars: shares of the agents.

    The area of a point grows with its share of the agents.
    """
    axes = _Axes((0.0, 1.0), (0.0, 1.0))
    parts = axes.frame(title, "probability of the most probable mode")
    largest = float(series.weight.max())
    for x, share in zip(series.x.tolist(), series.weight.tolist(), strict=True):
        # a bin is 0.1 wide; the highest bar has a fifth of the height
        left = math.ceil(round(x * 10, 6)) / 10 - 0.1
        corners_x = np.array([left + 0.005, left + 0.095])
        corners_y = np.array([share / largest / 5, 0.0])
        (x0, y0), (x1, y1) = axes.place(np.maximum(corners_x, 0.0), corners_y).tolist()
        size = {"x": f"{x0:.1f}", "y": f"{y0:.1f}", "width": f"{x1 - x0:.1f}"}
        parts.append(element("rect", **size, height=f"{y1 - y0:.1f}", class_="bar"))
    diagonal = axes.place(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    parts.append(element("path", d=line(diagonal), class_="diagonal"))
    means = np.array([estimate.mean for estimate in series.y])
    for x, estimate in zip(series.x.tolist(), series.y, strict=True):
        ends = axes.place(np.array([x, x]), np.array([_low(estimate), _high(estimate)]))
        parts.append(element("path", d=line(ends), class_=f"file-{series.file}"))
    for point, share in zip(axes.place(series.x, means), series.weight.tolist(), strict=True):
        parts.append(_dot(point, series.file, 2.0 + 3.0 * math.sqrt(share)))
    return svg(WIDTH, HEIGHT, f"{title}: reliability diagram; the numbers are in the table", *parts)


@dataclass(frozen=True)
class Difference:
    """A row of the chart of differences: percent of the baseline, with the interval."""

    name: str
    percent: Estimate


def difference_chart(title: str, file: int, rows: Sequence[Difference]) -> Markup:
    """Relative differences with intervals around 0, one row per metric."""
    lowest = min(0.0, *(_low(row.percent) for row in rows))
    highest = max(0.0, *(_high(row.percent) for row in rows))
    margin = max((highest - lowest) * 0.15, 0.1)
    low, high = lowest - margin, highest + margin
    height = _TOP + _ROW * len(rows) + _BOTTOM
    scale = (WIDTH - _NAMES - _RIGHT) / (high - low)
    zero = _NAMES - low * scale
    bottom = height - _BOTTOM
    parts = [element("text", title, x=4, y=14, class_="chart-title")]
    for value in ticks(low, high, 4):
        x = zero + value * scale
        class_ = "axis" if value == 0 else "grid"
        parts.append(element("path", d=f"M{x:.1f} {_TOP:g}V{bottom:g}", class_=class_))
        text = {"x": f"{x:.1f}", "y": bottom + 16, "text_anchor": "middle"}
        parts.append(element("text", f"{value:g}", **text))
    label = {"x": WIDTH - _RIGHT, "y": height - 4, "text_anchor": "end"}
    parts.append(element("text", "difference (% of the baseline); left is better", **label))
    for number, row in enumerate(rows):
        y = _TOP + _ROW * (number + 0.5)
        parts.append(element("text", row.name, x=4, y=f"{y + 4:.1f}"))
        ends = np.array([[_low(row.percent), y], [_high(row.percent), y]])
        ends[:, 0] = zero + ends[:, 0] * scale
        parts.append(element("path", d=line(ends), class_=f"file-{file}"))
        parts.append(_dot(np.array([zero + row.percent.mean * scale, y]), file))
    return svg(WIDTH, height, f"{title}; the numbers are in the table", *parts)


def _dot(point: np.ndarray, file: int, radius: float = _MARKER) -> Markup:
    x, y = point.tolist()
    size = f"{radius:.1f}"
    return element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=size, class_=f"dot dot-{file}")


def _low(estimate: Estimate) -> float:
    """The lower end of the interval, or the mean without one."""
    return estimate.mean if math.isnan(estimate.low) else estimate.low


def _high(estimate: Estimate) -> float:
    return estimate.mean if math.isnan(estimate.high) else estimate.high
