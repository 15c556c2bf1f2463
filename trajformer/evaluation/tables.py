"""Tables of results as text, as Markdown and as plain values for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trajformer.evaluation.bootstrap import Estimate

Cell = str | int | float | Estimate


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        name: short and unique, a key in JSON.
        title: one line, with the meaning of the numbers.
        columns: names.
        rows: cells in the order of the columns.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def only(self, columns: Sequence[str]) -> Table:
        """The table with some of its columns."""
        indices = [self.columns.index(name) for name in columns]
        rows = []
        for row in self.rows:
            rows.append(tuple(row[index] for index in indices))
        return replace(self, columns=tuple(columns), rows=tuple(rows))

    def without(self, column: str) -> Table:
        """The table without a column, such as one with equal cells."""
        return self.only([name for name in self.columns if name != column])


def only_intervals(table: Table, title: str) -> Table:
    """The table with the interval of each mean in place of both."""
    rows = []
    for row in table.rows:
        rows.append(tuple(_interval(cell) for cell in row))
    return replace(table, title=title, rows=tuple(rows))


def _interval(cell: Cell) -> Cell:
    if not isinstance(cell, Estimate):
        return cell
    if math.isnan(cell.low):
        return "-"
    return f"{cell.low:z.3f} to {cell.high:z.3f}"


def cell_text(cell: Cell) -> str:
    """A cell as text: 1.234, or 1.234 (1.200 to 1.268) with an interval; "-" is unknown."""
    if isinstance(cell, Estimate):
        if math.isnan(cell.low):
            return cell_text(cell.mean)
        return f"{cell.mean:z.3f} ({cell.low:z.3f} to {cell.high:z.3f})"
    if isinstance(cell, float):
        return "-" if math.isnan(cell) else f"{cell:z.3f}"
    return str(cell)


def as_text(table: Table) -> str:
    """The table as lines, with text to the left and numbers to the right."""
    is_text = []
    for column in zip(*table.rows, strict=True):
        is_text.append(all(isinstance(cell, str) for cell in column))
    lines = [list(table.columns)]
    for row in table.rows:
        lines.append([cell_text(cell) for cell in row])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for line in lines:
        cells = []
        for cell, width, to_the_left in zip(line, widths, is_text, strict=True):
            if to_the_left:
                cells.append(cell.ljust(width))
            else:
                cells.append(cell.rjust(width))
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def as_markdown(table: Table) -> str:
    """The title and the table in Markdown."""
    lines = [
        f"## {_escaped(table.title)}",
        "",
        _markdown_row(table.columns),
        _markdown_row(["---"] * len(table.columns)),
    ]
    for row in table.rows:
        cells = [_escaped(cell_text(cell)) for cell in row]
        lines.append(_markdown_row(cells))
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text of files without a meaning in Markdown or HTML."""
    for character, name in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(character, name)
    return text


def as_plain(table: Table) -> list[dict[str, Any]]:
    """A row for each row of the table: {column: value}, with None for unknown values."""
    rows = []
    for row in table.rows:
        cells = {}
        for name, cell in zip(table.columns, row, strict=True):
            cells[name] = _plain(cell)
        rows.append(cells)
    return rows


def _plain(cell: Cell) -> Any:
    if isinstance(cell, Estimate):
        return {name: _plain(value) for name, value in cell._asdict().items()}
    if isinstance(cell, float) and math.isnan(cell):
        return None
    return cell
