"""Texts of users in pictures, in any script."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.scenes import make_scene

from trajformer.plotting import fonts
from trajformer.plotting.attention import draw_attention_matrix, draw_bars
from trajformer.plotting.fonts import escaped
from trajformer.plotting.scene import plot_scene

NAMES = {
    "Z\u00fcrich \u05d0\u05d1": "Z\u00fcrich \u05d0\u05d1",  # DejaVu Sans has Latin and Hebrew
    "\u8f66": r"\u8f66",
    "\U0001f697 a": r"\U0001f697 a",
    "a\nb\x07": r"a\nb\x07",
    "\ud800": r"\ud800",
}


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fonts of matplotlib only, on every machine."""
    monkeypatch.setattr(fonts, "FALLBACKS", ())
    monkeypatch.setattr(fonts, "families", lambda: ["DejaVu Sans"])


@pytest.mark.parametrize("name", NAMES)
def test_characters_without_a_glyph_are_escaped(name: str) -> None:
    assert escaped(name) == NAMES[name]


@pytest.mark.parametrize("name", NAMES)
def test_pictures_with_names_in_any_script_give_no_warning(name: str) -> None:
    scene = replace(make_scene(3), scene_id=name, city=name)
    figures = [plot_scene(scene), Figure(), Figure()]
    draw_attention_matrix(figures[1].subplots(), np.full((1, 1), 1.0), [name], [name])
    draw_bars(figures[2].subplots(), [name], np.ones(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for figure in figures:
            figure.canvas.draw()
    assert figures[0].axes[0].get_title() == f"{NAMES[name]}, {NAMES[name]}"
