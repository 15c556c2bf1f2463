"""The artists of map, agents, forecasts, labels and attention weights."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from support.pictures import (
    collection,
    empty_axes,
    fan,
    fans,
    image_of,
    image_values,
    labels,
    lines,
    path_of,
    pixel,
    vertices,
)
from support.scenes import make_scene, transform_scene

from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting import style
from trajformer.plotting.attention import SCALE, draw_attention_map, draw_attention_matrix
from trajformer.plotting.colors import darker
from trajformer.plotting.forecasts import draw_forecasts, match_forecasts, track_errors
from trajformer.plotting.recorded import draw_agents, draw_map
from trajformer.plotting.scene import plot_scene
from trajformer.plotting.view import View
from trajformer.scenes.geometry import from_frame
from trajformer.scenes.scene import AgentKind, PolylineKind

# ---- map and agents ----------------------------------------------------------------------------


def test_boxes_are_at_the_last_observed_pose_with_the_size_of_the_kind() -> None:
    scene = transform_scene(make_scene(num_agents=12, num_scored=3), angle=0.7, shift=(3.0, -2.0))
    ax = draw_agents(empty_axes(), scene)
    now = scene.num_history - 1
    pose = np.append(scene.position[0, now], scene.heading[0, now]).astype(np.float64)
    corners = np.array([(2.3, 0.95), (-2.3, 0.95), (-2.3, -0.95), (2.3, -0.95)])
    [focal] = vertices(ax, "boxes:focal")
    np.testing.assert_allclose(focal[:4], from_frame(corners, pose), atol=1e-6)
    assert len(vertices(ax, "boxes:scored")) == 3
    assert len(vertices(ax, "boxes:recorder")) == 1
    assert len(vertices(ax, "boxes:context")) == scene.valid[4:-1, now].sum()


def circles(ax: Axes) -> list[np.ndarray]:
    """The scored agents that are drawn as circles."""
    return [outline for outline in vertices(ax, "boxes:scored") if len(outline) > 5]


def test_a_pedestrian_is_a_circle() -> None:
    scene = make_scene(num_agents=12, num_scored=3)
    assert scene.agent_kind[2] == AgentKind.PEDESTRIAN
    [circle] = circles(draw_agents(View(np.zeros(2), 10.0).apply(empty_axes()), scene))
    radius = np.linalg.norm(circle - scene.position[2, scene.num_history - 1], axis=1)
    np.testing.assert_allclose(radius, 0.35, atol=1e-5)


def test_recorded_sizes_are_drawn() -> None:
    scene = make_scene(num_agents=12, num_scored=3)
    size = np.zeros((scene.num_agents, 2), np.float32)
    size[0] = (12.0, 3.0)
    ax = View(np.zeros(2), 10.0).apply(empty_axes())
    draw_agents(ax, replace(scene, agent_size=size))
    [focal] = vertices(ax, "boxes:focal")
    front_left, back_left, back_right = focal[:3]
    assert math.dist(front_left, back_left) == pytest.approx(12.0, abs=1e-4)
    assert math.dist(back_left, back_right) == pytest.approx(3.0, abs=1e-4)

    [of_unknown_size] = circles(ax)
    center = of_unknown_size[:-1].mean(0)
    radius = np.linalg.norm(of_unknown_size - center, axis=1)
    np.testing.assert_allclose(radius, 0.35, atol=0.05)


def test_small_agents_are_enlarged_in_wide_pictures() -> None:
    scene = make_scene(num_agents=12, num_scored=3)
    ax = View(np.zeros(2), 500.0).apply(empty_axes())
    draw_agents(ax, scene)
    [circle] = circles(ax)
    low, high = ax.transData.transform([circle.min(0), circle.max(0)])
    figure = ax.get_figure(root=True)
    assert figure is not None
    points = (high - low) * 72 / figure.dpi
    np.testing.assert_allclose(points, 4.5, rtol=0.05)  # a polygon is narrower than its circle


def test_agents_lost_before_the_present_are_hollow_at_their_last_position() -> None:
    scene = make_scene(num_agents=12, num_scored=3)
    now = scene.num_history - 1
    scene.valid[1, now] = False
    ax = draw_agents(empty_axes(), scene, futures=[1])
    [box] = vertices(ax, "boxes:lost")
    np.testing.assert_allclose(box[:4].mean(0), scene.position[1, now - 1], atol=1e-4)
    assert len(collection(ax, "boxes:lost").get_facecolor()) == 0


def test_recorded_futures_have_the_colors_of_their_agents() -> None:
    scene = make_scene(num_scored=3)
    ax = plot_scene(scene, fans(scene)).axes[0]
    for agent in range(1, 4):
        [mode, *_] = lines(ax, f"mode:{scene.agent_id[agent]}:")
        [future] = lines(ax, f"truth:{scene.agent_id[agent]}")
        assert future.get_color() == darker(str(mode.get_color()))
    [focal] = lines(ax, f"truth:{scene.agent_id[0]}")
    assert focal.get_color() == style.TRUTH


def test_recorded_futures_begin_at_the_present() -> None:
    scene = make_scene(num_agents=12, num_scored=3)
    now = scene.num_history - 1
    ax = draw_agents(empty_axes(), scene)
    [future] = lines(ax, f"truth:{scene.agent_id[1]}")
    np.testing.assert_allclose(future.get_xydata(), scene.position[1, now:])


def test_road_lines_are_drawn() -> None:
    scene = make_scene()
    kind = scene.polyline_kind.copy()
    kind[:2] = PolylineKind.ROAD_LINE
    kind[2] = PolylineKind.ROAD_EDGE
    ax = draw_map(empty_axes(), replace(scene, polyline_kind=kind))
    assert len(vertices(ax, "lines:ROAD_LINE")) == 2
    assert len(vertices(ax, "lines:ROAD_EDGE")) == 1


# ---- forecasts ---------------------------------------------------------------------------------


def test_every_mode_is_a_line_with_its_trajectory() -> None:
    scene = make_scene()
    ax = empty_axes()
    forecasts = [fan(scene, 0, 6), fan(scene, 1, 3)]
    assert draw_forecasts(ax, scene, match_forecasts(scene, forecasts)) is ax
    for forecast in forecasts:
        modes = lines(ax, f"mode:{forecast.track_id}:")
        assert len(modes) == len(forecast.probability)
        for line in modes:
            mode = int(str(line.get_gid()).split(":")[2])
            expected = forecast.position[mode] - scene.origin
            np.testing.assert_allclose(path_of(line), expected, atol=1e-9)


@pytest.mark.parametrize("spread", [1.0, 0.0], ids=["fan", "all modes at one point"])
def test_labels_are_probabilities_without_overlap(spread: float) -> None:
    scene = make_scene(num_history=20, num_future=60)
    forecast = fan(scene, 0)
    position = (forecast.position - scene.origin) * spread + scene.origin
    figure = plot_scene(scene, [replace(forecast, position=position)])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()

    texts = labels(figure.axes[0])
    assert len(texts) >= 4
    assert texts[0].get_text() == f"{forecast.probability.max():.2f}"
    expected = {f"{probability:.2f}" for probability in forecast.probability}
    assert {text.get_text() for text in texts} <= expected

    frame = figure.axes[0].get_window_extent()
    boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in texts]
    for number, box in enumerate(boxes):
        assert frame.x0 <= box.x0
        assert frame.y0 <= box.y0
        assert box.x1 <= frame.x1
        assert box.y1 <= frame.y1
        assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scene_id": "other"}, "is for scene 'other'"),
        ({"track_id": "404"}, "has no track '404'"),
        ({"position": np.zeros((6, 5, 2))}, "5 steps, the scene has 12"),
    ],
)
def test_a_forecast_that_does_not_fit_the_scene_is_an_error(
    change: dict[str, Any], message: str
) -> None:
    scene = make_scene()
    forecast = replace(fan(scene, 0), **change)
    with pytest.raises(TrajformerError, match=message):
        plot_scene(scene, [forecast])


def test_track_error_in_closed_form() -> None:
    scene = make_scene()
    future = scene.position[0, scene.num_history :] + scene.origin
    distance = np.linspace(0.0, 4.0, scene.num_future)[:, None]
    position = np.stack([future + 5.0, future + distance * np.array([0.6, 0.8])])
    forecast = TrackForecast(scene.scene_id, "1000", np.array([1.0, 0.0]), position)
    matched = match_forecasts(scene, [forecast])
    assert track_errors(scene, matched) == [pytest.approx((2.0, 4.0), abs=1e-4)]
    assert not track_errors(make_scene(with_future=False), matched)


# ---- attention ---------------------------------------------------------------------------------


def test_the_overlay_covers_the_image_and_is_strongest_at_the_largest_weight() -> None:
    weights = np.array([[0.0, 0.1, 0.2], [0.4, 0.0, 0.0]])
    ax = draw_attention_map(empty_axes(), np.zeros((20, 60)), weights)
    assert tuple(image_of(ax, "image").get_extent()) == (0, 60, 20, 0)
    assert tuple(image_of(ax, "attention").get_extent()) == (0, 60, 20, 0)
    overlay = image_values(ax, "attention")
    opacity = overlay[..., 3]
    np.testing.assert_allclose(opacity / opacity.max(), weights / 0.4)
    np.testing.assert_allclose(overlay[0, 0, :3], to_rgb(style.FOCAL))


def test_the_overlay_is_orange_and_has_row_0_on_top() -> None:
    weights = np.array([[0.0, 0.1, 0.2], [0.4, 0.0, 0.0]])
    ax = draw_attention_map(empty_axes(), np.zeros((20, 60)), weights)
    large = pixel(ax, 10, 15)
    medium = pixel(ax, 50, 5)
    zero = pixel(ax, 50, 15)
    assert large[0] > medium[0] > zero[0] == 0
    assert large[0] > 2 * large[2]


def test_a_cross_marks_the_query() -> None:
    ax = draw_attention_map(empty_axes(), np.ones((10, 20)), np.ones((2, 2)), query=(15.0, 5.0))
    assert pixel(ax, 15.0, 5.0).sum() == 0


def test_a_matrix_has_names_and_weights() -> None:
    weights = np.array([[0.9, 0.1, 0.0], [0.3, 0.3, 0.4]])
    ax = draw_attention_matrix(empty_axes(), weights, ["a", "man"], ["ein", "Mann", "$x_{$"])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["ein", "Mann", "$x_{$"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "man"]
    np.testing.assert_allclose(image_values(ax, "attention"), weights)
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {(0, 0): "90", (1, 0): "10", (0, 1): "30", (1, 1): "30", (2, 1): "40"}


def test_a_large_matrix_has_no_numbers() -> None:
    names = [str(index) for index in range(40)]
    ax = draw_attention_matrix(empty_axes(), np.full((40, 40), 0.5), names, names)
    assert not ax.texts


def test_a_matrix_is_darkest_at_the_largest_weight() -> None:
    weights = np.array([[0.9, 0.1, 0.0], [0.3, 0.3, 0.4]])
    ax = draw_attention_matrix(empty_axes(), weights, ["a", "b"], ["c", "d", "e"])
    by_weight = [(2, 0), (1, 0), (0, 1), (0, 0)]  # cells by growing weight
    lightness = [pixel(ax, x - 0.35, y - 0.35).sum() for x, y in by_weight]
    assert lightness == sorted(lightness, reverse=True)
    assert lightness[0] > lightness[-1] + 1


def test_the_color_scale_of_a_matrix_is_monotonic_in_gray() -> None:
    colors = SCALE(np.linspace(0, 1, 50))[:, :3]
    gray = colors @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(gray) < 0).all()
