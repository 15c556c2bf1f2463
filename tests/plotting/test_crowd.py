"""Crowds: one color per pedestrian, one line per mode, and a density that counts people."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from support.pictures import collection, empty_axes, image_of, lines, vertices
from support.scenes import make_scene

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting.crowd import COLORS, crowd_colors, draw_crowd, draw_density, is_crowd
from trajformer.plotting.forecasts import match_forecasts
from trajformer.plotting.scene import plot_scene
from trajformer.plotting.view import choose_view
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

MODES = 20


def crowd(count: int = 30, history: int = 8, future: int = 12) -> Scene:
    """Pedestrians in rows 0.8 m apart, in random directions; the last one is context."""
    scene = make_scene(count, history, future, num_scored=count - 2, with_map=False)
    rng = np.random.default_rng(0)
    start = np.stack([np.arange(count) % 6, np.arange(count) // 6], -1) * 0.8
    position = (
        start[:, None]
        + rng.normal(0, 0.5, (count, 1, 2))
        * (np.arange(history + future)[:, None] - history + 1)
        * 0.4
    )
    role = np.full(count, AgentRole.SCORED, np.uint8)
    role[-1] = AgentRole.CONTEXT
    names, kind = (
        tuple(str(1000 + agent) for agent in range(count)),
        np.full(count, AgentKind.PEDESTRIAN, np.uint8),
    )
    tracks = {
        "position": position.astype(np.float32),
        "valid": np.ones(position.shape[:2], np.bool_),
    }
    return replace(
        scene, period_s=0.4, agent_id=names, agent_kind=kind, agent_role=role, **tracks
    ).validate()


def random_walks(scene: Scene) -> list[TrackForecast]:
    """Twenty random walks for each agent except the last; the first mode is the most probable."""
    rng = np.random.default_rng(1)
    probability = 0.9 ** np.arange(MODES) / (0.9 ** np.arange(MODES)).sum()
    now = scene.position[:, scene.num_history - 1] + scene.origin
    walks = [
        rng.normal(0, 0.2, (MODES, scene.num_future, 2)).cumsum(1) + now[a]
        for a in range(scene.num_agents - 1)
    ]
    return [
        TrackForecast(scene.scene_id, scene.agent_id[agent], probability, walk)
        for agent, walk in enumerate(walks)
    ]


@pytest.fixture(scope="module")
def scene() -> Scene:
    return crowd()


def test_every_mode_is_a_path_from_the_last_observed_position(scene: Scene) -> None:
    forecasts, ax = random_walks(scene), empty_axes()
    assert draw_crowd(ax, scene, match_forecasts(scene, forecasts)) is ax
    for agent, forecast in enumerate(forecasts):
        paths = vertices(ax, f"modes:{forecast.track_id}")
        assert len(paths) == MODES
        for mode, path in enumerate(paths):
            np.testing.assert_array_equal(path[0], scene.position[agent, scene.num_history - 1])
            np.testing.assert_allclose(path[1:], forecast.position[mode] - scene.origin, atol=1e-9)
        ends = np.asarray(collection(ax, f"ends:{forecast.track_id}").get_offsets())
        np.testing.assert_allclose(ends, forecast.position[:, -1] - scene.origin, atol=1e-9)
        alpha = np.asarray(collection(ax, f"modes:{forecast.track_id}").get_edgecolor())[:, 3]  # type: ignore[attr-defined]
        assert (np.diff(alpha) < 0).all() and alpha[-1] >= 0.25


def test_neighbors_differ_in_color_and_agents_have_the_color_of_their_modes(scene: Scene) -> None:
    forecasts = random_walks(scene)
    colors = crowd_colors(scene, match_forecasts(scene, forecasts))
    assert sorted(colors) == list(range(29)) and set(colors.values()) == set(COLORS)
    now = scene.position[:29, scene.num_history - 1]
    for agent, color in colors.items():
        nearest = np.argsort(np.linalg.norm(now - now[agent], axis=1))[1:3]
        assert not [other for other in nearest if colors[int(other)] == color]
    ax = plot_scene(scene, forecasts).axes[0]
    faces = np.asarray(collection(ax, "boxes:scored").get_facecolor())
    assert [to_hex(face).upper() for face in faces] == [
        colors[agent].upper() for agent in range(29)
    ]


def test_a_crowd_has_pedestrians_only_and_no_focal_agent(scene: Scene) -> None:
    assert is_crowd(scene) and not is_crowd(make_scene())
    role, kind = scene.agent_role.copy(), scene.agent_kind.copy()
    role[3], kind[-1] = AgentRole.FOCAL, AgentKind.CYCLIST
    assert not is_crowd(replace(scene, agent_role=role))
    mixed = replace(scene, agent_kind=kind)
    assert not is_crowd(mixed)
    assert lines(plot_scene(mixed, random_walks(scene)[:2]).axes[0], "mode:")


def test_the_density_counts_each_forecast_as_one_person(scene: Scene) -> None:
    forecasts, ax = match_forecasts(scene, random_walks(scene)), empty_axes()
    choose_view(scene, forecasts).apply(ax)
    limits = ax.get_xlim(), ax.get_ylim()
    assert draw_density(ax, scene, forecasts) is ax and (ax.get_xlim(), ax.get_ylim()) == limits
    image = image_of(ax, "density")
    values, (left, right, bottom, top) = np.asarray(image.get_array()), image.get_extent()
    cell = (right - left) / values.shape[1]
    assert (top - bottom) / values.shape[0] == pytest.approx(cell) and cell <= 0.11
    assert left == pytest.approx(limits[0][0]) and bottom == pytest.approx(limits[1][0])
    assert abs(right - limits[0][1]) <= cell and values.sum() * cell**2 == pytest.approx(
        29, rel=0.01
    )
    scale = ax.child_axes[0]
    assert scale.get_title(loc="left") == "people per m², mean of 4.8 s"
    assert float(scale.get_xticklabels()[-1].get_text()) == pytest.approx(values.max(), rel=0.06)


def test_the_density_is_proportional_to_the_probability_and_names_the_agents() -> None:
    scene = replace(crowd(2), agent_kind=np.full(2, AgentKind.VEHICLE, np.uint8))
    distance = np.arange(1, scene.num_future + 1)[:, None] * 0.4
    position = np.stack([distance * (1.0, 0.0), distance * (0.0, 1.0)]) + scene.origin
    forecast = TrackForecast(scene.scene_id, scene.agent_id[0], np.array([0.75, 0.25]), position)
    figure = plot_scene(scene, [forecast], density=True)
    ax = figure.axes[0]
    image = image_of(ax, "density")
    values, (left, right, bottom, top) = np.asarray(image.get_array()), image.get_extent()

    def at(x: float, y: float) -> float:
        row, column = (
            (y - bottom) / (top - bottom) * len(values),
            (x - left) / (right - left) * values.shape[1],
        )
        return float(values[int(row), int(column)])

    assert at(4.0, 0.0) == pytest.approx(3 * at(0.0, 4.0), rel=0.1) and at(0.0, 4.0) > 20 * at(
        3.0, 3.0
    )
    assert ax.child_axes[0].get_title(loc="left").startswith("agents per m², ")
    pixels = replace(
        scene,
        unit="px",
        position=scene.position * 20,
        velocity=scene.velocity * 20,
        origin=scene.origin * 20,
    )
    bar = (
        plot_scene(pixels, [replace(forecast, position=position * 20)], density=True)
        .axes[0]
        .child_axes[0]
    )
    assert bar.get_title(loc="left").startswith("agents per (20 px)², ")
    assert [text.get_text() for text in bar.get_xticklabels()] == [
        text.get_text() for text in ax.child_axes[0].get_xticklabels()
    ]
    assert not [
        line for line in ax.collections if str(line.get_gid()).startswith("modes:")
    ] and not lines(ax, "mode:")
