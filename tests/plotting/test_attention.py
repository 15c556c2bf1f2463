"""Attention weights over images, matrices, bars and polylines."""

import numpy as np
from matplotlib.colors import to_rgb
from support.pictures import empty_axes, image_of, image_values, pixel

from trajformer.plotting import style
from trajformer.plotting.attention import (
    SCALE,
    draw_attention_map,
    draw_attention_matrix,
    draw_shares,
)

GRAY = np.array([0.299, 0.587, 0.114])


def test_map_covers_the_image_and_is_strongest_at_the_largest_weight() -> None:
    weights = np.array([[0.0, 0.1, 0.2], [0.4, 0.0, 0.0]])
    ax = draw_attention_map(empty_axes(), np.zeros((20, 60)), weights)
    assert tuple(image_of(ax, "attention").get_extent()) == tuple(image_of(ax, "image").get_extent()) == (0, 60, 20, 0)
    overlay = image_values(ax, "attention")
    np.testing.assert_allclose(overlay[..., 3] / overlay[..., 3].max(), weights / 0.4)
    np.testing.assert_allclose(overlay[0, 0, :3], to_rgb(style.FOCAL))
    marked = draw_attention_map(empty_axes(), np.ones((10, 20)), np.ones((2, 2)), query=(15.0, 5.0))
    assert pixel(marked, 15.0, 5.0).sum() == 0
    large, medium, zero = (pixel(ax, x, y) for x, y in ((10, 15), (50, 5), (50, 15)))
    assert large[0] > medium[0] > zero[0] == 0 and large[0] > 2 * large[2]  # orange on black, row 0 on top


def test_matrix_has_names_and_is_darkest_at_the_largest_weight() -> None:
    weights = np.array([[0.9, 0.1, 0.0], [0.3, 0.3, 0.4]])
    ax = draw_attention_matrix(empty_axes(), weights, ["a", "man"], ["ein", "Mann", "$x_{$"])
    light = [pixel(ax, x - 0.35, y - 0.35).sum() for x, y in ((2, 0), (1, 0), (0, 1), (0, 0))]
    assert light == sorted(light, reverse=True) and light[0] > light[-1] + 1
    assert [t.get_text() for t in ax.get_xticklabels()] == ["ein", "Mann", "$x_{$"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "man"]
    np.testing.assert_allclose(image_values(ax, "attention"), weights)
    written = {(text.get_position(), text.get_text()) for text in ax.texts}
    assert written == {((0, 0), "90"), ((1, 0), "10"), ((0, 1), "30"), ((1, 1), "30"), ((2, 1), "40")}
    names = [str(index) for index in range(40)]
    assert not draw_attention_matrix(empty_axes(), np.full((40, 40), 0.5), names, names).texts  # too large for numbers
    assert (np.diff(SCALE(np.linspace(0, 1, 50))[:, :3] @ GRAY) < 0).all()


def test_shares_are_bars_from_the_top_with_numbers() -> None:
    ax = draw_shares(empty_axes(), ["cat", "$d_{$"], np.array([0.75, 0.25]))
    bars = sorted(ax.patches, key=lambda bar: -bar.get_window_extent().y1)
    assert [round(bar.get_width(), 6) for bar in bars] == [0.75, 0.25]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["cat", "$d_{$"]
    assert [text.get_text() for text in ax.texts] == ["0.75", "0.25"]
