"""Elements of HTML and SVG as text. All texts and attributes are escaped here, and only here."""

from __future__ import annotations

import html
from collections.abc import Iterable

import numpy as np

from trajformer.plotting.page.palette import FILE_DASHES


class Markup(str):
    """Text that is HTML already; any other text is escaped before it becomes part of a page."""


def escaped(text: object) -> Markup:
    """A text without any meaning in HTML.

    Characters that cannot be seen, such as control characters and marks of the direction of
    writing, become escapes as in Python.
    """
    if isinstance(text, Markup):
        return text
    shown = []
    for character in str(text):
        if character.isprintable():
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape", "surrogatepass").decode())
    return Markup(html.escape("".join(shown)))


def element(name: str, *content: object, **attributes: object) -> Markup:
    """An element; `class_` is the attribute class, and `aria_label` is aria-label."""
    parts = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        parts.append(f'{attribute}="{escaped(value)}"')
    return Markup(f"<{' '.join(parts)}>{join(content)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Several parts in this order."""
    return Markup("".join(escaped(part) for part in parts))


def svg(width: float, height: float, label: str, *content: object, **attributes: object) -> Markup:
    """A picture of `width` x `height` units that fills the width of its place.

    `label` describes it for readers who cannot see it.
    """
    box = f"0 0 {width:g} {height:g}"
    return element(
        "svg", *content, viewBox=box, role="img", aria_label=label, focusable="false", **attributes
    )


def line(points: np.ndarray, *, closed: bool = False) -> str:
    """The attribute `d` of a path through points [p, 2], rounded to 0.1 unit."""
    rounded = np.round(np.asarray(points, np.float64), 1)
    differs = np.ones(len(rounded), bool)
    differs[1:] = (rounded[1:] != rounded[:-1]).any(1)
    texts = [f"{x:g} {y:g}" for x, y in rounded[differs].tolist()]
    return f"M{'L'.join(texts)}{'Z' if closed else ''}"


def dashes(file: int) -> str:
    """The attribute `stroke-dasharray` of the lines of a forecast file."""
    return " ".join(f"{value:g}" for value in FILE_DASHES[file]) or "none"


def swatch(file: int) -> Markup:
    """A short line with the color and dashes of a forecast file, for legends and tables."""
    stroke = element("path", d="M1 5H27", class_=f"file-{file}", stroke_dasharray=dashes(file))
    return element("svg", stroke, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")


def named(file: int, name: str) -> Markup:
    """The name of a forecast file after its swatch."""
    return element("span", swatch(file), " ", element("bdi", name), class_="file")
