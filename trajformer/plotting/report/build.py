"""Assembles the report in one HTML file.

It has no script. Its policy allows one style sheet by its hash and no request, so text of files and
scenes cannot run or load anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from trajformer.evaluation.examples import Examples, example_metric
from trajformer.plotting.page import palette
from trajformer.plotting.report import sections
from trajformer.plotting.report.markup import Markup, element, join, named, swatch
from trajformer.plotting.report.sections import Record, section
from trajformer.scenes.files import write_atomically
from trajformer.scenes.scene import PolylineKind

GENERATOR = "trajformer report"  # `cli.files` recognizes reports by it
MAX_FILES = len(palette.FILES_LIGHT)


@dataclass(frozen=True)
class Picture:
    """A scene of the report.

    Attributes:
        scene_id, city: of the scene.
        errors: of each file, as text.
        image: of `pictures.scene_picture`.
    """

    scene_id: str
    city: str
    errors: Sequence[str]
    image: Markup


@dataclass(frozen=True)
class Gallery:
    """A group of scenes, and a command that draws them large; empty without a store."""

    group: Examples
    pictures: Sequence[Picture]
    command: str


def write_report(path: Path, title: str, record: Record, galleries: Sequence[Gallery]) -> int:
    """Write the page and return its number of bytes (OSError: the file cannot be written)."""
    style = style_sheet()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    parts = [
        sections.scored(record),
        sections.metrics(record),
        sections.comparison(record),
        sections.horizons(record),
        sections.breakdowns(record) if record.keys else None,
        sections.calibration(record),
        sections.details(record),
        _scenes(record, galleries),
    ]
    shown = [part for part in parts if part is not None]
    head = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta name="generator" content="{GENERATOR}">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        element("title", title),
        f"<style>{style}</style>\n</head>\n<body>",
    ]
    body = [
        element("header", element("h1", title), _contents(shown)),
        element("main", *shown),
        "</body>\n</html>\n",
    ]
    text = "\n".join([*head, *body])
    write_atomically(path, text)
    return len(text.encode())


def style_sheet() -> str:
    """The style of the page, with the colors of `palette` for light and dark pages."""
    text = (files("trajformer.plotting.report") / "source" / "style.css").read_text("utf-8")
    light = _variables(palette.LIGHT)
    dark = _variables(palette.DARK)
    return text.replace("/* light */", light).replace("/* dark */", dark)


def _variables(colors: dict[str, object]) -> str:
    """Colors as variables of the style sheet: --truth, --file-0, --lane-bus."""
    values: dict[str, object] = {}
    for name in ("paper", "ink", "truth", "context", "contextEdge", "drivable", "drivableEdge"):
        values[name] = colors[name]
    for name in ("crosswalk", "roadEdge", "roadLine", "recorder", "scored", "scoredEdge"):
        values[name] = colors[name]
    for number, color in enumerate(_list(colors["files"])):
        values[f"file-{number}"] = color
    lanes = colors["lanes"]
    assert isinstance(lanes, dict)
    values["lane"] = lanes[int(PolylineKind.LANE_VEHICLE)]["color"]
    values["lane-bus"] = lanes[int(PolylineKind.LANE_BUS)]["color"]
    values["lane-bike"] = lanes[int(PolylineKind.LANE_BIKE)]["color"]
    return " ".join(f"--{name}: {color};" for name, color in values.items())


def _list(value: object) -> Sequence[object]:
    assert isinstance(value, tuple)
    return value


def _contents(parts: Sequence[Markup]) -> Markup:
    """Links to the sections, with the names of their headings."""
    links = []
    for part in parts:
        name = part.partition('<section id="')[2].partition('"')[0]
        title = part.partition("<h2 ")[2].partition(">")[2].partition("</h2>")[0]
        links.append(element("a", Markup(title), href=f"#{name}"))
    return element("nav", *links, aria_label="Contents")


def _scenes(record: Record, galleries: Sequence[Gallery]) -> Markup:
    """Pictures of scenes, their errors, and commands that draw them large."""
    metric = example_metric(record.scorings)
    text = (
        f"Errors are the mean {metric} ({record.unit}) over the scored agents of a scene. Lines "
        "are predicted modes, more opaque where more probable."
    )
    parts = [element("p", text), element("p", *_picture_legend(record), class_="legend")]
    for gallery in galleries:
        parts.append(element("h3", _gallery_title(gallery.group, record)))
        figures = [_figure(picture) for picture in gallery.pictures]
        parts.append(element("div", *figures, class_="gallery"))
        if gallery.command:
            parts.append(element("p", element("code", gallery.command), class_="command"))
    return section("scenes", "Scenes", *parts)


def _gallery_title(group: Examples, record: Record) -> Markup:
    """For example "largest gain of b over a"."""
    first, *others = [named(number, record.scorings[number].label) for number in group.files]
    parts: list[object] = [group.title.capitalize(), " of ", first]
    for other in others:
        parts += [" against ", other]
    return join(parts)


def _figure(picture: Picture) -> Markup:
    errors = []
    for number, text in enumerate(picture.errors):
        errors.append(element("span", swatch(number), " ", text))
    lines = [element("code", picture.scene_id), element("span", picture.city), *errors]
    return element("figure", picture.image, element("figcaption", *lines))


def _picture_legend(record: Record) -> Iterator[Markup]:
    """The looks of agents and lines in the pictures of scenes."""
    for number, one in enumerate(record.scorings):
        yield named(number, one.label)
    looks = {
        "forecast agent, with its history": ("target-box", "M6 2H22V8H6Z"),
        "recorded future": ("truth", "M1 5H27"),
        "other agent": ("agent", "M6 2H22V8H6Z"),
    }
    for name, (class_, path) in looks.items():
        drawn = element("path", d=path, class_=class_)
        image = element("svg", drawn, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")
        yield element("span", image, " ", name, class_="file")
