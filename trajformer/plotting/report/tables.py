"""Tables of a record as HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

from trajformer.evaluation.bootstrap import Estimate
from trajformer.evaluation.breakdown import FORECAST
from trajformer.evaluation.tables import Cell, Table, cell_text
from trajformer.plotting.report.markup import Markup, element, named

Names = Mapping[str, int]  # number of each forecast file by its name
_WHOLE = "z.3f"


def html_table(table: Table, names: Names) -> Markup:
    """A table with its title; equal cells of the first column are one cell of several rows.

    The name of the forecast is left out if there is only one, and it is not the only name of a row.
    """
    shown = table
    if len(names) == 1 and FORECAST in table.columns[1:]:
        shown = table.without(FORECAST)
    num_headers = _num_headers(shown)
    body = []
    for _, rows in groupby(shown.rows, key=lambda row: row[0]):
        body += _rows_of_group(list(rows), shown.columns, num_headers, names)
    heads = []
    for number, name in enumerate(shown.columns):
        kind = "text" if number < num_headers else "number"
        heads.append(element("th", name, scope="col", class_=kind))
    return _table(table.title, heads, body)


def by_metric(table: Table, title: str, names: Names) -> Markup:
    """A table with a row per forecast, with rows and columns exchanged: a row per metric."""
    labels = [str(row[0]) for row in table.rows]
    heads = [element("th", "metric", scope="col", class_="text")]
    for label in labels:
        heads.append(element("th", named(names[label], label), scope="col", class_="number"))
    body = []
    for column, name in enumerate(table.columns):
        if column == 0:
            continue
        cells = [element("th", name, scope="row", class_="text")]
        cells += [_cell(row[column]) for row in table.rows]
        body.append(element("tr", *cells))
    return _table(title, heads, body)


def _num_headers(table: Table) -> int:
    """The number of first columns that name a row: those with text only."""
    count = 0
    for column in zip(*table.rows, strict=True):
        if not all(isinstance(cell, str) for cell in column):
            break
        count += 1
    return count


def _rows_of_group(
    rows: Sequence[Sequence[Cell]], columns: Sequence[str], num_headers: int, names: Names
) -> list[Markup]:
    made = []
    for number, row in enumerate(rows):
        cells: list[Markup] = []
        for column, (name, cell) in enumerate(zip(columns, row, strict=True)):
            if column >= num_headers:
                cells.append(_cell(cell))
                continue
            text: object = cell
            if name == FORECAST:
                text = named(names[str(cell)], str(cell))
            if column > 0:
                cells.append(element("th", text, scope="row", class_="text"))
            elif number == 0:
                scope = "row" if len(rows) == 1 else "rowgroup"
                attributes = {"rowspan": len(rows), "scope": scope, "class_": "text"}
                cells.append(element("th", text, **attributes))
        class_ = "first" if number == 0 else "next"
        made.append(element("tr", *cells, class_=class_))
    return made


def _cell(cell: Cell) -> Markup:
    """A number, with its interval in a second line."""
    if isinstance(cell, Estimate):
        mean = cell_text(cell.mean)
        if math.isnan(cell.low):
            return element("td", mean)
        interval = f"{cell.low:{_WHOLE}} to {cell.high:{_WHOLE}}"
        return element("td", mean, " ", element("span", interval, class_="interval"))
    if isinstance(cell, int):
        return element("td", f"{cell:,}")
    return element("td", cell_text(cell))


def _table(title: str, heads: Sequence[Markup], body: Sequence[Markup]) -> Markup:
    """A table that scrolls sideways on a narrow screen, also with the keyboard."""
    caption = element("caption", title)
    head = element("thead", element("tr", *heads))
    made = element("table", caption, head, element("tbody", *body))
    return element("div", made, class_="scroll", tabindex=0, role="region", aria_label=title)
