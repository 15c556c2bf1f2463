"""Drawings of the models: one per model, current, legible, and shown in docs/models.md."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import draw_models
import pytest
from model_drawings import DRAWINGS

from trajformer.recipes.choices import MODELS

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "images" / "models"
ZOO = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def test_drawings_are_of_known_models_and_all_are_committed() -> None:
    assert DRAWINGS.keys() <= MODELS.keys() | {"mmtransformer_rts"}
    assert {path.name for path in PICTURES.iterdir()} == {f"{name}.svg" for name in DRAWINGS}


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_committed_drawing_is_current(name: str) -> None:
    data = draw_models.picture(DRAWINGS[name])
    assert data == draw_models.picture(DRAWINGS[name]), "two drawings differ"
    assert data == (PICTURES / f"{name}.svg").read_bytes(), "run python tools/draw_models.py"
    assert len(data) < 40_000


@pytest.mark.parametrize("name", DRAWINGS)
def test_text_fits_boxes_are_apart_and_arrows_cross_no_box(name: str) -> None:
    drawing = DRAWINGS[name]
    figure = draw_models.draw(drawing)
    figure.draw_without_rendering()
    [axes], boxes = figure.axes, drawing.boxes
    texts = [text for text in axes.texts if text.get_text()]
    assert [text.get_text() for text in texts] == [line for box in boxes for line in (box.title, box.shape)]
    for number, box in enumerate(boxes):
        left, bottom, width, height = draw_models.rectangle(box)
        (x0, y0), (x1, y1) = axes.transData.transform([(left, bottom), (left + width, bottom + height)])
        for text in texts[2 * number : 2 * number + 2]:
            extent = text.get_window_extent()
            assert x0 + 2 < extent.x0 and extent.x1 < x1 - 2 and y0 < extent.y0 and extent.y1 < y1, text.get_text()
    cells = [(box.at[0], column) for box in boxes for column in range(box.at[1], box.at[1] + box.span)]
    assert len(cells) == len(set(cells))
    by_name = {box.name: box for box in boxes}
    assert len(by_name) == len(boxes)
    for source, target in drawing.edges:
        for (ax, ay), (bx, by) in pairwise(draw_models.corners_of(by_name[source], by_name[target])):
            for box in boxes:
                left, bottom, width, height = draw_models.rectangle(box)
                inside_x = max(min(ax, bx), left + 1e-6) <= min(max(ax, bx), left + width - 1e-6)
                inside_y = max(min(ay, by), bottom + 1e-6) <= min(max(ay, by), bottom + height - 1e-6)
                assert not (inside_x and inside_y), f"{source} > {target} crosses {box.name}"


@pytest.mark.parametrize("name", DRAWINGS)
def test_every_box_has_an_arrow_and_the_model_ends_in_its_loss(name: str) -> None:
    drawing = DRAWINGS[name]
    sources, targets = zip(*drawing.edges, strict=True)
    [last] = [box for box in drawing.boxes if box.parts == ("loss",) and box.name not in sources]
    assert last.name in targets and {box.name for box in drawing.boxes} == {*sources, *targets}


def test_the_zoo_shows_every_picture_and_names_existing_files() -> None:
    assert set(re.findall(r'src="images/models/(\w+)\.svg"', ZOO)) == DRAWINGS.keys()
    paths = re.findall(r"`((?:configs|trajformer)/[^`]+)`", ZOO)
    assert len(paths) > 8 and [path for path in paths if not (ROOT / path).exists()] == []
