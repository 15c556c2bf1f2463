"""Pictures of the zoo: one for every model, the committed ones drawn today, boxes that lie apart; docs/models.md shows them all."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

from trajformer.models import ModelConfig

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import draw_models  # noqa: E402 - tools are no package
from model_drawings import DRAWINGS  # noqa: E402

PICTURES = ROOT / "docs" / "images" / "models"
ZOO = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def test_every_model_has_a_picture() -> None:
    """Constant velocity has nothing to draw, the second stage of AgentFormer is in the picture of the first."""
    models = {part.name for part in fields(ModelConfig)} - {"constant_velocity", "agentformer_sampler"}
    assert DRAWINGS.keys() == models | {"mmtransformer_rts"}
    assert {path.name for path in PICTURES.iterdir()} == {f"{name}.svg" for name in DRAWINGS}


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_committed_picture_is_what_is_drawn_today(name: str) -> None:
    drawn = draw_models.picture(DRAWINGS[name])
    assert drawn == draw_models.picture(DRAWINGS[name]), "two drawings of the same differ"
    assert drawn == (PICTURES / f"{name}.svg").read_bytes(), "run python tools/draw_models.py"
    text = drawn.decode()
    assert len(drawn) < 40_000 and all(
        f">{box.title.split(' ||')[0]}" in text.replace("&amp;", "&") for box in DRAWINGS[name].boxes
    )


@pytest.mark.parametrize("name", DRAWINGS)
def test_text_stays_in_boxes_that_lie_apart_and_arrows_cross_none(name: str) -> None:
    drawing = DRAWINGS[name]
    figure = draw_models.draw(drawing)
    figure.draw_without_rendering()
    [axes] = figure.axes
    [texts, boxes] = [[text for text in axes.texts if text.get_text()], list(drawing.boxes)]
    assert [text.get_text() for text in texts] == [line for box in boxes for line in (box.title, box.shape)]
    for number, box in enumerate(boxes):
        left, bottom, width, height = draw_models.place(box)
        (x0, y0), (x1, y1) = axes.transData.transform([(left, bottom), (left + width, bottom + height)])
        for text in texts[2 * number : 2 * number + 2]:
            extent = text.get_window_extent()
            assert x0 + 2 < extent.x0 and extent.x1 < x1 - 2 and y0 < extent.y0 and extent.y1 < y1, text.get_text()
    cells = [(box.row, column) for box in boxes for column in range(box.column, box.column + box.span)]
    assert len(cells) == len(set(cells))
    named = {box.name: box for box in boxes}
    assert len(named) == len(boxes)
    for source, target in drawing.edges:
        corners = draw_models.way(named[source], named[target])
        for (ax, ay), (bx, by) in pairwise(corners):
            for box in boxes:
                left, bottom, width, height = draw_models.place(box)
                inside_x = max(min(ax, bx), left + 1e-6) <= min(max(ax, bx), left + width - 1e-6)
                inside_y = max(min(ay, by), bottom + 1e-6) <= min(max(ay, by), bottom + height - 1e-6)
                assert not (inside_x and inside_y), f"{source} > {target} crosses {box.name}"


def test_a_model_ends_in_its_loss() -> None:
    for drawing in DRAWINGS.values():
        sources, targets = zip(*drawing.edges, strict=True)
        [last] = [box for box in drawing.boxes if box.parts == ("loss",) and box.name not in sources]
        assert last.name in targets
        assert {box.name for box in drawing.boxes} == {*sources, *targets}


def test_the_zoo_shows_every_picture_and_names_existing_files() -> None:
    assert set(re.findall(r'src="images/models/(\w+)\.svg"', ZOO)) == DRAWINGS.keys()
    paths = re.findall(r"`((?:configs|trajformer)/[^`]+)`", ZOO)
    assert len(paths) > 8 and [path for path in paths if not (ROOT / path).exists()] == []
