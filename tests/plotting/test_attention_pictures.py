"""Pictures of attention: what is drawn is what was given, at its place and in its strength."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.image import AxesImage
from support.pictures import empty_axes, render

from trajformer.plotting import style
from trajformer.plotting.attention import (
    SCALE,
    draw_attention_lines,
    draw_attention_map,
    draw_attention_matrix,
    draw_image,
    draw_shares,
)


def image(ax: Axes, gid: str) -> AxesImage:
    (found,) = [image for image in ax.images if image.get_gid() == gid]
    return found


def array(ax: Axes, gid: str) -> np.ndarray:
    return np.asarray(image(ax, gid).get_array())


def brightness(ax: Axes, x: float, y: float) -> np.ndarray:
    """Colour [3] of the rendered picture at a place in data units."""
    import io

    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(render(ax))).convert("RGB")) / 255.0
    ax.figure.set_dpi(60)
    column, row = ax.transData.transform((x, y))
    return pixels[len(pixels) - 1 - int(row), int(column)]


def test_a_map_lies_over_the_whole_picture_and_hides_most_where_the_weight_is_highest() -> None:
    weights = np.array([[0.0, 0.1, 0.2], [0.4, 0.0, 0.0]])
    ax = draw_attention_map(empty_axes(), np.zeros((20, 60)), weights)
    assert tuple(image(ax, "attention").get_extent()) == tuple(image(ax, "image").get_extent()) == (0, 60, 20, 0)
    veil = array(ax, "attention")
    np.testing.assert_allclose(veil[..., 3] / veil[..., 3].max(), weights / 0.4)
    np.testing.assert_allclose(veil[0, 0, :3], to_rgb(style.FOCAL))
    there, half, nowhere = (brightness(ax, x, y) for x, y in ((10, 15), (50, 5), (50, 15)))
    assert there[0] > half[0] > nowhere[0] == 0 and there[0] > 2 * there[2]  # orange on black; row 0 is on top


def test_maps_of_several_pictures_can_share_a_scale() -> None:
    ax = draw_attention_map(empty_axes(), np.zeros((4, 4)), np.full((2, 2), 0.25), highest=0.5)
    own = draw_attention_map(empty_axes(), np.zeros((4, 4)), np.full((2, 2), 0.25))
    np.testing.assert_allclose(array(ax, "attention")[..., 3], array(own, "attention")[..., 3] / 2)


def test_a_coloured_picture_is_grey_under_a_map_and_coloured_without() -> None:
    red = np.zeros((4, 4, 3))
    red[..., 0] = 1.0
    under = draw_attention_map(empty_axes(), red, np.zeros((2, 2)))
    np.testing.assert_allclose(brightness(under, 1, 1), 0.299, atol=0.01)
    np.testing.assert_allclose(brightness(draw_image(empty_axes(), red), 1, 1), (1, 0, 0))


def test_who_attends_is_marked() -> None:
    ax = draw_attention_map(empty_axes(), np.ones((10, 20)), np.ones((2, 2)), query=(15.0, 5.0))
    crosses = [line for line in ax.lines if line.get_gid() == "query"]
    assert crosses and all((line.get_xdata()[0], line.get_ydata()[0]) == (15.0, 5.0) for line in crosses)
    assert brightness(ax, 15.0, 5.0).sum() == 0


def test_weights_that_are_all_zero_leave_the_picture_bare() -> None:
    ax = draw_attention_map(empty_axes(), np.ones((4, 4)), np.zeros((2, 2)))
    np.testing.assert_allclose(brightness(ax, 1, 1), 1.0)


@pytest.mark.parametrize(("picture", "weights"), [((4,), (2, 2)), ((3, 4, 4), (2, 2)), ((4, 4), (4,)), ((4, 4), (1, 2, 2))])
def test_a_map_of_another_shape_is_refused(picture: tuple[int, ...], weights: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        draw_attention_map(empty_axes(), np.zeros(picture), np.zeros(weights))


def test_a_matrix_names_its_rows_and_columns_and_is_darkest_where_the_weight_is_highest() -> None:
    weights = np.array([[0.9, 0.1, 0.0], [0.3, 0.3, 0.4]])
    ax = draw_attention_matrix(empty_axes(), weights, ["a", "man"], ["ein", "Mann", "$x_{$"])
    render(ax)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["ein", "Mann", "$x_{$"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "man"]
    np.testing.assert_allclose(array(ax, "attention"), weights)
    light = [brightness(ax, x - 0.35, y - 0.35).sum() for x, y in ((2, 0), (1, 0), (0, 1), (0, 0))]
    assert light == sorted(light, reverse=True) and light[0] > light[-1] + 1
    written = {(text.get_position(), text.get_text()) for text in ax.texts}
    assert written == {((0, 0), "90"), ((1, 0), "10"), ((0, 1), "30"), ((1, 1), "30"), ((2, 1), "40")}


def test_a_large_matrix_has_no_numbers() -> None:
    names = [str(index) for index in range(40)]
    assert not draw_attention_matrix(empty_axes(), np.full((40, 40), 0.5), names, names).texts


def test_a_matrix_with_other_names_is_refused() -> None:
    with pytest.raises(ValueError, match="2 rows and 2 columns"):
        draw_attention_matrix(empty_axes(), np.zeros((2, 3)), ["a", "b"], ["c", "d"])


def test_the_scale_gets_darker_with_every_step() -> None:
    lightness = SCALE(np.linspace(0, 1, 50))[:, :3] @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(lightness) < 0).all()


def test_shares_are_bars_from_the_top_with_their_numbers() -> None:
    ax = draw_shares(empty_axes(), ["cat", "$d_{$"], np.array([0.75, 0.25]))
    render(ax)
    bars = sorted(ax.patches, key=lambda bar: -bar.get_window_extent().y1)
    assert [round(bar.get_width(), 6) for bar in bars] == [0.75, 0.25]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["cat", "$d_{$"]
    assert [text.get_text() for text in ax.texts] == ["0.75", "0.25"]
    with pytest.raises(ValueError, match="2 names"):
        draw_shares(empty_axes(), ["cat", "dog"], np.zeros(3))


def test_polylines_are_wider_and_darker_and_higher_up_the_more_they_are_attended_to() -> None:
    polylines = [np.array([[0.0, y], [1.0, y], [2.0, y + 1]][: 2 + y % 2]) for y in range(3)]
    ax = empty_axes()
    ax.set(xlim=(-1, 3), ylim=(-1, 5))
    draw_attention_lines(ax, polylines, np.array([0.5, 0.0, 0.25]))
    (lines,) = [c for c in ax.collections if isinstance(c, LineCollection)]
    drawn = [np.asarray(path.vertices) for path in lines.get_paths()]
    for path, index in zip(drawn, (1, 2, 0), strict=True):  # the last one drawn lies on top
        np.testing.assert_allclose(path, polylines[index])
    assert list(lines.get_linewidths()) == sorted(lines.get_linewidths())
    lightness = np.asarray(lines.get_colors())[:, :3] @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(lightness) < 0).all()
    assert (ax.get_xlim(), ax.get_ylim()) == ((-1, 3), (-1, 5))
    render(ax)
    with pytest.raises(ValueError, match="3 polylines"):
        draw_attention_lines(ax, polylines, np.zeros(2))


def test_no_polylines_at_all_draw_nothing() -> None:
    render(draw_attention_lines(empty_axes(), [], np.zeros(0)))
