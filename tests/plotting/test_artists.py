"""The artists of map, agents, forecasts, labels and attention weights."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from support.pictures import (
    empty_axes,
    fan,
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
from trajformer.plotting.forecasts import draw_forecasts, match_forecasts, track_errors
from trajformer.plotting.recorded import draw_agents, draw_map
from trajformer.plotting.scene import plot_scene
from trajformer.scenes.geometry import from_frame
from trajformer.scenes.scene import AgentKind, PolylineKind


def test_boxes_are_at_the_last_observed_pose_with_the_size_of_the_kind() -> None:
    scene = transform_scene(make_scene(num_agents=12, num_scored=3), angle=0.7, shift=(3.0, -2.0))
    ax = draw_agents(empty_axes(), scene)
    now = scene.num_history - 1
    pose = np.append(scene.position[0, now], scene.heading[0, now]).astype(np.float64)
    corners = from_frame(np.array([(2.3, 0.95), (-2.3, 0.95), (-2.3, -0.95), (2.3, -0.95)]), pose)
    np.testing.assert_allclose(vertices(ax, "boxes:focal")[0][:4], corners, atol=1e-6)
    assert len(vertices(ax, "boxes:scored")) == 3 and len(vertices(ax, "boxes:recorder")) == 1
    assert len(vertices(ax, "boxes:context")) == scene.valid[4:-1, now].sum()
    assert scene.agent_kind[2] == AgentKind.PEDESTRIAN
    (circle,) = [v for v in vertices(ax, "boxes:scored") if len(v) > 5]
    np.testing.assert_allclose(
        np.linalg.norm(circle - scene.position[2, now], axis=1), 0.35, atol=1e-5
    )


def test_recorded_sizes_and_road_lines_are_drawn() -> None:
    scene = make_scene(num_agents=12, num_scored=3)
    size, kind = np.zeros((scene.num_agents, 2), np.float32), scene.polyline_kind.copy()
    size[0], kind[:3] = (
        (12.0, 3.0),
        (PolylineKind.ROAD_LINE, PolylineKind.ROAD_LINE, PolylineKind.ROAD_EDGE),
    )
    ax = draw_agents(
        draw_map(empty_axes(), replace(scene, agent_size=size, polyline_kind=kind)),
        replace(scene, agent_size=size),
    )
    front_left, back_left, back_right = vertices(ax, "boxes:focal")[0][:3]
    assert np.hypot(*(front_left - back_left)) == pytest.approx(12.0, abs=1e-4)
    assert np.hypot(*(back_left - back_right)) == pytest.approx(3.0, abs=1e-4)
    (circle,) = [v for v in vertices(ax, "boxes:scored") if len(v) > 5]  # its size is unknown
    np.testing.assert_allclose(
        np.linalg.norm(circle - circle[:-1].mean(0), axis=1), 0.35, atol=0.05
    )
    assert len(vertices(ax, "lines:ROAD_LINE")) == 2 and len(vertices(ax, "lines:ROAD_EDGE")) == 1


def test_every_mode_is_a_line_with_its_trajectory() -> None:
    scene, ax = make_scene(), empty_axes()
    forecasts = [fan(scene, 0, 6), fan(scene, 1, 3)]
    assert draw_forecasts(ax, scene, match_forecasts(scene, forecasts)) is ax
    for forecast in forecasts:
        modes = lines(ax, f"mode:{forecast.track_id}:")
        assert len(modes) == len(forecast.probability)
        for line in modes:
            mode = int(str(line.get_gid()).split(":")[2])
            np.testing.assert_allclose(
                path_of(line), forecast.position[mode] - scene.origin, atol=1e-9
            )


@pytest.mark.parametrize("spread", [1.0, 0.0], ids=["fan", "all modes at one point"])
def test_labels_are_probabilities_without_overlap(spread: float) -> None:
    scene = make_scene(num_history=20, num_future=60)
    forecast = fan(scene, 0)
    forecast = replace(
        forecast, position=(forecast.position - scene.origin) * spread + scene.origin
    )
    figure = plot_scene(scene, [forecast])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts, frame = labels(figure.axes[0]), figure.axes[0].get_window_extent()
    assert {t.get_text() for t in texts} <= {f"{p:.2f}" for p in forecast.probability}
    assert texts[0].get_text() == f"{forecast.probability.max():.2f}" and len(texts) >= 4
    boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in texts]
    for number, box in enumerate(boxes):
        assert (
            frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
        )
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_a_forecast_that_does_not_fit_the_scene_is_an_error() -> None:
    wrong = {
        "is for scene 'other'": {"scene_id": "other"},
        "has no track '404'": {"track_id": "404"},
    }
    for message, change in (
        wrong | {"5 steps, the scene has 12": {"position": np.zeros((6, 5, 2))}}
    ).items():
        with pytest.raises(TrajformerError, match=message):
            plot_scene(make_scene(), [replace(fan(make_scene(), 0), **change)])


def test_track_error_in_closed_form() -> None:
    scene = make_scene()
    future = scene.position[0, scene.num_history :] + scene.origin
    ramp = np.linspace(0.0, 4.0, scene.num_future)[:, None] * np.array([0.6, 0.8])
    forecast = TrackForecast(
        scene.scene_id, "1000", np.array([1.0, 0.0]), np.stack([future + 5.0, future + ramp])
    )
    matched = match_forecasts(scene, [forecast])
    assert track_errors(scene, matched) == [pytest.approx((2.0, 4.0), abs=1e-4)]
    assert not track_errors(make_scene(with_future=False), matched)


GRAY = np.array([0.299, 0.587, 0.114])


def test_map_covers_the_image_and_is_strongest_at_the_largest_weight() -> None:
    weights = np.array([[0.0, 0.1, 0.2], [0.4, 0.0, 0.0]])
    ax = draw_attention_map(empty_axes(), np.zeros((20, 60)), weights)
    assert (
        tuple(image_of(ax, "attention").get_extent())
        == tuple(image_of(ax, "image").get_extent())
        == (0, 60, 20, 0)
    )
    overlay = image_values(ax, "attention")
    np.testing.assert_allclose(overlay[..., 3] / overlay[..., 3].max(), weights / 0.4)
    np.testing.assert_allclose(overlay[0, 0, :3], to_rgb(style.FOCAL))
    marked = draw_attention_map(empty_axes(), np.ones((10, 20)), np.ones((2, 2)), query=(15.0, 5.0))
    assert pixel(marked, 15.0, 5.0).sum() == 0
    large, medium, zero = (pixel(ax, x, y) for x, y in ((10, 15), (50, 5), (50, 15)))
    assert (
        large[0] > medium[0] > zero[0] == 0 and large[0] > 2 * large[2]
    )  # orange on black, row 0 on top


def test_matrix_has_names_and_is_darkest_at_the_largest_weight() -> None:
    weights = np.array([[0.9, 0.1, 0.0], [0.3, 0.3, 0.4]])
    ax = draw_attention_matrix(empty_axes(), weights, ["a", "man"], ["ein", "Mann", "$x_{$"])
    light = [pixel(ax, x - 0.35, y - 0.35).sum() for x, y in ((2, 0), (1, 0), (0, 1), (0, 0))]
    assert light == sorted(light, reverse=True) and light[0] > light[-1] + 1
    assert [t.get_text() for t in ax.get_xticklabels()] == ["ein", "Mann", "$x_{$"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "man"]
    np.testing.assert_allclose(image_values(ax, "attention"), weights)
    written = {(text.get_position(), text.get_text()) for text in ax.texts}
    assert written == {
        ((0, 0), "90"),
        ((1, 0), "10"),
        ((0, 1), "30"),
        ((1, 1), "30"),
        ((2, 1), "40"),
    }
    names = [str(index) for index in range(40)]
    assert not draw_attention_matrix(
        empty_axes(), np.full((40, 40), 0.5), names, names
    ).texts  # too large for numbers
    assert (np.diff(SCALE(np.linspace(0, 1, 50))[:, :3] @ GRAY) < 0).all()
