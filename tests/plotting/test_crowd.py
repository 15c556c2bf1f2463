"""Crowds: one color per pedestrian, one line per mode, and a density that counts people."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from support.pictures import collection, empty_axes, image_of, lines, vertices
from support.scenes import make_scene

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting.colors import agent_colors
from trajformer.plotting.crowd import draw_crowd, draw_density, is_crowd
from trajformer.plotting.forecasts import match_forecasts
from trajformer.plotting.scene import plot_scene
from trajformer.plotting.style import AGENT_COLORS, SCALE
from trajformer.plotting.view import choose_view
from trajformer.scenes.scene import UNITS, AgentKind, AgentRole, Scene

MODES = 20


def crowd(count: int = 30, history: int = 8, future: int = 12) -> Scene:
    """Pedestrians in rows 0.8 m apart, in random directions; the last one is context."""
    scene = make_scene(count, history, future, num_scored=count - 2, with_map=False)
    row, column = np.divmod(np.arange(count), 6)
    start = 0.8 * np.stack([column, row], -1)  # [A, 2]
    velocity = np.random.default_rng(0).normal(0, 0.5, (count, 1, 2))
    time = 0.4 * (np.arange(history + future) - history + 1)
    position = start[:, None] + velocity * time[:, None]
    role = np.full(count, AgentRole.SCORED, np.uint8)
    role[-1] = AgentRole.CONTEXT
    scene = replace(
        scene,
        period_s=0.4,
        agent_id=tuple(str(1000 + agent) for agent in range(count)),
        agent_kind=np.full(count, AgentKind.PEDESTRIAN, np.uint8),
        agent_role=role,
        position=position.astype(np.float32),
        valid=np.ones(position.shape[:2], np.bool_),
    )
    return scene.validate()


def random_walks(scene: Scene) -> list[TrackForecast]:
    """Twenty random walks for each agent except the last; the first mode is the most probable."""
    rng = np.random.default_rng(1)
    weight = 0.9 ** np.arange(MODES)
    probability = weight / weight.sum()
    present = scene.position[:, scene.num_history - 1] + scene.origin
    forecasts = []
    for agent in range(scene.num_agents - 1):
        steps = rng.normal(0, 0.2, (MODES, scene.num_future, 2))
        position = present[agent] + steps.cumsum(1)
        track_id = scene.agent_id[agent]
        forecasts.append(TrackForecast(scene.scene_id, track_id, probability, position))
    return forecasts


@pytest.fixture(scope="module")
def scene() -> Scene:
    return crowd()


def test_every_mode_is_a_path_from_the_last_observed_position(scene: Scene) -> None:
    forecasts = random_walks(scene)
    ax = empty_axes()
    assert draw_crowd(ax, scene, match_forecasts(scene, forecasts)) is ax
    for agent, forecast in enumerate(forecasts):
        present = scene.position[agent, scene.num_history - 1]
        expected = forecast.position - scene.origin
        paths = vertices(ax, f"modes:{forecast.track_id}")
        assert len(paths) == MODES
        for mode, path in enumerate(paths):
            np.testing.assert_array_equal(path[0], present)
            np.testing.assert_allclose(path[1:], expected[mode], atol=1e-9)
        dots = collection(ax, f"ends:{forecast.track_id}")
        np.testing.assert_allclose(np.asarray(dots.get_offsets()), expected[:, -1], atol=1e-9)


def test_probable_modes_are_more_opaque(scene: Scene) -> None:
    forecasts = random_walks(scene)
    ax = draw_crowd(empty_axes(), scene, match_forecasts(scene, forecasts))
    for forecast in forecasts:
        modes = collection(ax, f"modes:{forecast.track_id}")
        opacity = np.asarray(modes.get_edgecolor())[:, 3]  # type: ignore[attr-defined]
        assert (np.diff(opacity) < 0).all()
        assert opacity[-1] >= 0.25


def test_the_two_nearest_neighbors_have_other_colors(scene: Scene) -> None:
    colors = agent_colors(scene, match_forecasts(scene, random_walks(scene)))
    assert sorted(colors) == list(range(29))
    assert set(colors.values()) == set(AGENT_COLORS)
    position = scene.position[:29, scene.num_history - 1]
    for agent, color in colors.items():
        distance = np.linalg.norm(position - position[agent], axis=1)
        _, first, second = np.argsort(distance)[:3].tolist()
        assert colors[first] != color
        assert colors[second] != color


def test_agents_have_the_color_of_their_modes(scene: Scene) -> None:
    forecasts = random_walks(scene)
    colors = agent_colors(scene, match_forecasts(scene, forecasts))
    ax = plot_scene(scene, forecasts).axes[0]
    faces = np.asarray(collection(ax, "boxes:scored").get_facecolor())
    assert [to_hex(face).upper() for face in faces] == [colors[agent] for agent in range(29)]


def test_a_crowd_has_pedestrians_only_and_no_focal_agent(scene: Scene) -> None:
    assert is_crowd(scene)
    assert not is_crowd(make_scene())
    role = scene.agent_role.copy()
    role[3] = AgentRole.FOCAL
    assert not is_crowd(replace(scene, agent_role=role))


def test_a_scene_with_a_cyclist_is_drawn_with_single_modes(scene: Scene) -> None:
    kind = scene.agent_kind.copy()
    kind[-1] = AgentKind.CYCLIST
    mixed = replace(scene, agent_kind=kind)
    assert not is_crowd(mixed)
    assert lines(plot_scene(mixed, random_walks(scene)[:2]).axes[0], "mode:")


# ---- density -----------------------------------------------------------------------------------


class Density(NamedTuple):
    """A drawn density."""

    values: np.ndarray  # [rows, columns]
    left: float
    right: float
    bottom: float
    top: float
    scale: Axes

    def at(self, x: float, y: float) -> float:
        rows, columns = self.values.shape
        row = (y - self.bottom) / (self.top - self.bottom) * rows
        column = (x - self.left) / (self.right - self.left) * columns
        return float(self.values[int(row), int(column)])

    def title(self) -> str:
        return self.scale.get_title(loc="left")

    def ticks(self) -> list[str]:
        return [text.get_text() for text in self.scale.get_xticklabels()]


def density_of(ax: Axes) -> Density:
    image = image_of(ax, "density")
    return Density(np.asarray(image.get_array()), *image.get_extent(), ax.child_axes[0])


def test_the_density_counts_each_forecast_as_one_person(scene: Scene) -> None:
    forecasts = match_forecasts(scene, random_walks(scene))
    ax = choose_view(scene, forecasts).apply(empty_axes())
    draw_density(ax, scene, forecasts)
    density = density_of(ax)
    cell = (density.right - density.left) / density.values.shape[1]
    assert density.values.sum() * cell**2 == pytest.approx(29, rel=0.01)
    assert density.title() == "people per m², mean of 4.8 s"
    assert float(density.ticks()[-1]) == pytest.approx(density.values.max(), rel=0.06)


@pytest.mark.parametrize("unit", UNITS)
def test_the_density_covers_the_axes_with_square_cells_and_keeps_the_limits(
    scene: Scene, unit: str
) -> None:
    scene = replace(scene, unit=unit)
    forecasts = match_forecasts(scene, random_walks(scene))
    ax = choose_view(scene, forecasts).apply(empty_axes(), unit)
    x_limits = ax.get_xlim()
    y_limits = ax.get_ylim()
    assert draw_density(ax, scene, forecasts) is ax
    assert ax.get_xlim() == x_limits
    assert ax.get_ylim() == y_limits

    density = density_of(ax)
    rows, columns = density.values.shape
    cell = (density.right - density.left) / columns
    assert cell <= 0.11 * SCALE[unit]
    assert (density.top - density.bottom) / rows == pytest.approx(cell)
    assert density.left == pytest.approx(x_limits[0])
    assert density.bottom == pytest.approx(min(y_limits))
    assert density.right == pytest.approx(x_limits[1], abs=cell)


def two_modes(scene: Scene) -> TrackForecast:
    """One agent that walks 4.8 m along x (probability 0.75) or along y."""
    distance = np.arange(1, scene.num_future + 1)[:, None] * 0.4
    modes = np.stack([distance * (1.0, 0.0), distance * (0.0, 1.0)])
    probability = np.array([0.75, 0.25])
    return TrackForecast(scene.scene_id, scene.agent_id[0], probability, modes + scene.origin)


def test_the_density_is_proportional_to_the_probability() -> None:
    scene = crowd(2)
    ax = plot_scene(scene, [two_modes(scene)], density=True).axes[0]
    density = density_of(ax)
    along_x = density.at(4.0, 0.0)
    along_y = density.at(0.0, 4.0)
    between = density.at(3.0, 3.0)
    assert along_x == pytest.approx(3 * along_y, rel=0.1)
    assert along_y > 20 * between


def test_a_density_is_drawn_instead_of_modes() -> None:
    scene = crowd(2)
    ax = plot_scene(scene, [two_modes(scene)], density=True).axes[0]
    assert not lines(ax, "mode:")
    gids = [str(artist.get_gid()) for artist in ax.collections]
    assert not [gid for gid in gids if gid.startswith("modes:")]


def test_the_scale_of_a_density_names_agents_and_unit() -> None:
    scene = replace(crowd(2), agent_kind=np.full(2, AgentKind.VEHICLE, np.uint8))
    forecast = two_modes(scene)
    metres = density_of(plot_scene(scene, [forecast], density=True).axes[0])
    assert metres.title().startswith("agents per m², ")

    in_pixels = replace(
        scene,
        unit="px",
        position=scene.position * 20,
        velocity=scene.velocity * 20,
        origin=scene.origin * 20,
    )
    forecast = replace(forecast, position=forecast.position * 20)
    pixels = density_of(plot_scene(in_pixels, [forecast], density=True).axes[0])
    assert pixels.title().startswith("agents per (20 px)², ")
    assert pixels.ticks() == metres.ticks()
