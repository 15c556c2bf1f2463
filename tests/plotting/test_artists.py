"""The artists of map, agents, forecasts and labels have the coordinates of the scene."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from support.pictures import empty_axes, fan, labels, lines, path_of, vertices
from support.scenes import make_scene, transform_scene

from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting import style
from trajformer.plotting.forecasts import draw_forecasts, match_forecasts, track_errors
from trajformer.plotting.recorded import draw_agents, draw_map
from trajformer.plotting.scene import plot_scene
from trajformer.scenes.geometry import from_frame
from trajformer.scenes.scene import AgentKind, PolylineKind


def test_map_artists_have_the_polylines() -> None:
    scene, ax = make_scene(), empty_axes()
    assert draw_map(ax, scene) is ax
    counts = {str(c.get_gid()): len(c.get_paths()) for c in ax.collections if c.get_gid() != "lanes:arrows"}
    kinds = ("LANE_VEHICLE", "LANE_BUS", "LANE_BIKE")
    expected = {f"lanes:{k}": 8 for k in kinds} | {f"lanes:{k}:intersection": 4 for k in kinds}
    assert counts == expected | {"crosswalks": 4, "drivable": 1}
    np.testing.assert_array_equal(vertices(ax, "lanes:LANE_VEHICLE")[0], scene.polyline(0))


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
    np.testing.assert_allclose(np.linalg.norm(circle - scene.position[2, now], axis=1), 0.35, atol=1e-5)


def test_recorded_sizes_and_road_lines_are_drawn() -> None:
    scene = make_scene(num_agents=12, num_scored=3)
    size, kind = np.zeros((scene.num_agents, 2), np.float32), scene.polyline_kind.copy()
    size[0], kind[:3] = (12.0, 3.0), (PolylineKind.ROAD_LINE, PolylineKind.ROAD_LINE, PolylineKind.ROAD_EDGE)
    ax = draw_agents(draw_map(empty_axes(), replace(scene, agent_size=size, polyline_kind=kind)), replace(scene, agent_size=size))
    front_left, back_left, back_right = vertices(ax, "boxes:focal")[0][:3]
    assert np.hypot(*(front_left - back_left)) == pytest.approx(12.0, abs=1e-4)
    assert np.hypot(*(back_left - back_right)) == pytest.approx(3.0, abs=1e-4)
    (circle,) = [v for v in vertices(ax, "boxes:scored") if len(v) > 5]  # its size is unknown
    np.testing.assert_allclose(np.linalg.norm(circle - circle[:-1].mean(0), axis=1), 0.35, atol=0.05)
    assert len(vertices(ax, "lines:ROAD_LINE")) == 2 and len(vertices(ax, "lines:ROAD_EDGE")) == 1


def test_targets_have_a_recorded_future() -> None:
    scene = make_scene(num_scored=2)
    ax = draw_agents(empty_axes(), scene)
    assert [line.get_gid() for line in lines(ax, "truth")] == ["truth:1000", "truth:1001", "truth:1002"]
    np.testing.assert_array_equal(path_of(lines(ax, "truth:1000")[0]), scene.position[0, scene.num_history :])
    assert not lines(draw_agents(empty_axes(), make_scene(with_future=False)), "truth")


def test_every_mode_is_a_line_with_its_trajectory() -> None:
    scene, ax = make_scene(), empty_axes()
    forecasts = [fan(scene, 0, 6), fan(scene, 1, 3)]
    assert draw_forecasts(ax, scene, match_forecasts(scene, forecasts)) is ax
    for forecast in forecasts:
        modes = lines(ax, f"mode:{forecast.track_id}:")
        assert len(modes) == len(forecast.probability)
        for line in modes:
            mode = int(str(line.get_gid()).split(":")[2])
            np.testing.assert_allclose(path_of(line), forecast.position[mode] - scene.origin, atol=1e-9)


def test_probable_modes_are_opaque_and_on_top_and_the_focal_agent_differs_in_color_width_and_marker() -> None:
    scene = make_scene()
    forecast = replace(fan(scene, 0, 5), probability=fan(scene, 0, 5).probability[[2, 0, 4, 1, 3]])
    ax = draw_forecasts(empty_axes(), scene, match_forecasts(scene, [forecast, fan(scene, 1)]))
    modes = [lines(ax, f"mode:1000:{mode}")[0] for mode in np.argsort(forecast.probability)]
    assert (np.diff([line.get_alpha() for line in modes]) > 0).all() and modes[-1].get_alpha() == 1.0
    assert (np.diff([line.get_zorder() for line in modes]) > 0).all()
    focal, other = modes[0], lines(ax, "mode:1001:")[0]
    assert focal.get_color() == style.FOCAL and other.get_color() == style.SCORED
    assert focal.get_linewidth() > other.get_linewidth() and focal.get_marker() != other.get_marker()


@pytest.mark.parametrize("spread", [1.0, 0.0], ids=["fan", "all modes at one point"])
def test_labels_are_probabilities_without_overlap(spread: float) -> None:
    scene = make_scene(num_history=20, num_future=60)
    forecast = fan(scene, 0)
    forecast = replace(forecast, position=(forecast.position - scene.origin) * spread + scene.origin)
    figure = plot_scene(scene, [forecast])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts, frame = labels(figure.axes[0]), figure.axes[0].get_window_extent()
    assert {t.get_text() for t in texts} <= {f"{p:.2f}" for p in forecast.probability}
    assert texts[0].get_text() == f"{forecast.probability.max():.2f}" and len(texts) >= 4
    boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in texts]
    for number, box in enumerate(boxes):
        assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
        assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scene_id": "other"}, "is for scene 'other'"),
        ({"track_id": "404"}, "has no track '404'"),
        ({}, "5 steps, the scene has 12"),
    ],
)
def test_a_forecast_that_does_not_fit_the_scene_is_an_error(change: dict[str, str], message: str) -> None:
    scene = make_scene()
    forecast = replace(fan(scene, 0), **change) if change else replace(fan(scene, 0), position=np.zeros((6, 5, 2)))
    with pytest.raises(TrajformerError, match=message):
        plot_scene(scene, [forecast])


def test_track_error_in_closed_form() -> None:
    scene = make_scene()
    future = scene.position[0, scene.num_history :] + scene.origin
    ramp = np.linspace(0.0, 4.0, scene.num_future)[:, None] * np.array([0.6, 0.8])
    forecast = TrackForecast(scene.scene_id, "1000", np.array([1.0, 0.0]), np.stack([future + 5.0, future + ramp]))
    matched = match_forecasts(scene, [forecast])
    assert track_errors(scene, matched) == [pytest.approx((2.0, 4.0), abs=1e-4)]
    assert not track_errors(make_scene(with_future=False), matched)
