"""Crowds: a colour a pedestrian, every mode a line, and a density that counts people."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from support.pictures import collection, empty_axes, lines, path_of, render, vertices
from support.scenes import make_scene

from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting.crowd import COLOURS, crowd_colours, draw_crowd, is_crowd
from trajformer.plotting.density import draw_density, expected_density
from trajformer.plotting.scene import plot_scene
from trajformer.plotting.view import choose_view
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

MODES = 20


def crowd(count: int = 30, history: int = 8, future: int = 12) -> Scene:
    """Pedestrians in rows 0.8 m apart who walk in all directions; the last one is context."""
    scene = make_scene(count, history, future, num_scored=count - 2, with_map=False)
    rng = np.random.default_rng(0)
    place = np.stack([np.arange(count) % 6, np.arange(count) // 6], -1) * 0.8
    position = place[:, None] + rng.normal(0, 0.5, (count, 1, 2)) * (np.arange(history + future)[:, None] - history + 1) * 0.4
    role = np.full(count, AgentRole.SCORED, np.uint8)
    role[-1] = AgentRole.CONTEXT
    return replace(
        scene,
        agent_id=tuple(str(1000 + agent) for agent in range(count)),
        agent_kind=np.full(count, AgentKind.PEDESTRIAN, np.uint8),
        agent_role=role,
        period_s=0.4,
        position=position.astype(np.float32),
        valid=np.ones(position.shape[:2], np.bool_),
    ).validate()


def forecasts(scene: Scene) -> list[TrackForecast]:
    """Twenty random walks for everybody but the last, the first mode the most probable."""
    rng = np.random.default_rng(1)
    probability = 0.9 ** np.arange(MODES)
    found = []
    for agent in range(scene.num_agents - 1):
        way = rng.normal(0, 0.2, (MODES, scene.num_future, 2)).cumsum(1) + scene.position[agent, scene.num_history - 1]
        found.append(TrackForecast(scene.scene_id, scene.agent_id[agent], probability / probability.sum(), way + scene.origin))
    return found


def test_every_mode_of_every_pedestrian_is_a_path_from_where_they_are() -> None:
    scene = crowd()
    given, ax = forecasts(scene), empty_axes()
    assert draw_crowd(ax, scene, given) is ax
    for agent, forecast in enumerate(given):
        drawn = vertices(ax, f"modes:{forecast.track_id}")
        assert len(drawn) == MODES
        for mode, path in enumerate(drawn):
            np.testing.assert_array_equal(path[0], scene.position[agent, scene.num_history - 1])
            np.testing.assert_allclose(path[1:], forecast.position[mode] - scene.origin, atol=1e-9)
        ends = np.asarray(collection(ax, f"ends:{forecast.track_id}").get_offsets())
        np.testing.assert_allclose(ends, forecast.position[:, -1] - scene.origin, atol=1e-9)
        alpha = np.asarray(collection(ax, f"modes:{forecast.track_id}").get_edgecolor())[:, 3]  # type: ignore[attr-defined]
        assert (np.diff(alpha) < 0).all() and alpha[-1] >= 0.25
    assert len([line for line in ax.collections if str(line.get_gid()).startswith("modes:")]) == len(given) == 29


def test_neighbours_differ_in_colour_and_pedestrians_wear_that_of_their_modes() -> None:
    scene = crowd()
    given = forecasts(scene)
    colours = crowd_colours(scene, given)
    assert sorted(colours) == list(range(29)) and set(colours.values()) == set(COLOURS)
    here = scene.position[:, scene.num_history - 1]
    for agent, colour in colours.items():
        apart = np.linalg.norm(here[:29] - here[agent], axis=1)
        assert not [other for other in np.argsort(apart)[1:3] if colours[int(other)] == colour]
    ax = plot_scene(scene, given)
    faces = np.asarray(collection(ax, "boxes:scored").get_facecolor())
    assert [to_hex(face).upper() for face in faces] == [colours[agent].upper() for agent in range(29)]
    line = np.asarray(collection(ax, f"modes:{given[4].track_id}").get_edgecolor())[0]  # type: ignore[attr-defined]
    assert to_hex(line).upper() == colours[4].upper()
    trails = np.asarray(collection(ax, "trails:scored").get_edgecolor())[:, :3]  # type: ignore[attr-defined]
    assert {to_hex(rgb).upper() for rgb in trails} == set(COLOURS)
    assert to_hex(np.asarray(collection(ax, "boxes:context").get_facecolor())[0]) == "#bdbdbd"


def test_a_crowd_is_where_all_walk_and_none_is_the_focal_agent() -> None:
    scene = crowd()
    assert is_crowd(scene) and not is_crowd(make_scene())
    role = scene.agent_role.copy()
    role[3] = AgentRole.FOCAL
    assert not is_crowd(replace(scene, agent_role=role))
    kind = scene.agent_kind.copy()
    kind[-1] = AgentKind.CYCLIST
    mixed = replace(scene, agent_kind=kind)
    assert not is_crowd(mixed)
    assert not lines(plot_scene(scene, forecasts(scene)[:2]), "mode:") and lines(plot_scene(mixed, forecasts(scene)[:2]), "mode:")


def test_a_crowd_fills_its_picture_and_has_no_numbers_in_it() -> None:
    scene = crowd()
    given = forecasts(scene)
    view = choose_view(scene, given)
    points = np.concatenate([forecast.position.reshape(-1, 2) - scene.origin for forecast in given])
    points = np.concatenate([points, scene.position[:-1].reshape(-1, 2)])
    assert (np.abs(points - view.centre) < view.half).all()
    assert view.half < 0.55 * np.ptp(points, axis=0).max() + 2.0
    ax = plot_scene(scene, given)
    assert not [text for text in ax.texts if text.get_gid() == "label"]
    legend = ax.get_legend()
    assert legend is not None
    names = {text.get_text() for text in legend.get_texts()} - {""}
    assert names == {"scored agent", "other agent", "forecasts, a colour each", "recorded future"}
    assert render(ax).startswith(b"\x89PNG")
    few = lines(plot_scene(crowd(5), forecasts(crowd(5))), "truth")
    assert few[0].get_linewidth() > lines(ax, "truth")[0].get_linewidth()
    np.testing.assert_array_equal(path_of(lines(ax, "truth:1003")[0]), scene.position[3, scene.num_history :])


# density -----------------------------------------------------------------------------------------------------------


def test_the_density_of_one_point_is_a_normal_distribution() -> None:
    x, y = np.arange(-3, 3, 0.05), np.arange(-2, 4, 0.05)
    density = expected_density(np.array([[0.5, 1.0]]), np.array([2.0]), x, y, spread_m=0.4)
    assert density.shape == (len(y), len(x))
    expected = 2.0 / (2 * np.pi * 0.16) * np.exp(-((x - 0.5) ** 2 + (y[:, None] - 1.0) ** 2) / 0.32)
    np.testing.assert_allclose(density, expected, rtol=1e-9)
    assert density.sum() * 0.05**2 == pytest.approx(2.0, abs=1e-3)


def test_the_density_counts_every_forecast_as_one_person() -> None:
    scene = crowd()
    given = forecasts(scene)
    ax = empty_axes()
    choose_view(scene, given).apply(ax)
    limits = ax.get_xlim(), ax.get_ylim()
    assert draw_density(ax, scene, given) is ax and (ax.get_xlim(), ax.get_ylim()) == limits
    (image,) = [image for image in ax.images if image.get_gid() == "density"]
    values, (left, right, bottom, top) = np.asarray(image.get_array()), image.get_extent()
    cell = (right - left) / values.shape[1]
    assert (top - bottom) / values.shape[0] == pytest.approx(cell) and cell <= 0.11
    assert left == pytest.approx(limits[0][0]) and bottom == pytest.approx(limits[1][0])
    assert abs(right - limits[0][1]) <= cell and values.sum() * cell**2 == pytest.approx(29, rel=0.01)
    scale = ax.child_axes[0]
    assert scale.get_title(loc="left") == "people per m², mean of 4.8 s"
    assert float(scale.get_xticklabels()[-1].get_text()) == pytest.approx(values.max(), rel=0.06)


def test_the_density_is_high_where_probable_modes_go() -> None:
    scene = crowd(2)
    step = np.arange(1, scene.num_future + 1)[:, None] * 0.4
    ways = np.stack([step * (1.0, 0.0), step * (0.0, 1.0)]) + scene.origin
    forecast = TrackForecast(scene.scene_id, scene.agent_id[0], np.array([0.75, 0.25]), ways)
    ax = plot_scene(scene, [forecast], density=True)
    (image,) = [image for image in ax.images if image.get_gid() == "density"]
    values, (left, right, bottom, top) = np.asarray(image.get_array()), image.get_extent()

    def at(x: float, y: float) -> float:
        row, column = (y - bottom) / (top - bottom) * len(values), (x - left) / (right - left) * values.shape[1]
        return float(values[int(row), int(column)])

    assert at(4.0, 0.0) == pytest.approx(3 * at(0.0, 4.0), rel=0.1) and at(0.0, 4.0) > 20 * at(3.0, 3.0)
    assert not [line for line in ax.collections if str(line.get_gid()).startswith("modes:")] and not lines(ax, "mode:")
    assert render(ax).startswith(b"\x89PNG")


def test_density_of_vehicles_of_nothing_and_of_strangers() -> None:
    scene = make_scene()
    ax = plot_scene(scene, density=True)
    assert not ax.images
    stranger = TrackForecast(scene.scene_id, "404", np.ones(1), np.zeros((1, 12, 2)))
    for draw in (draw_density, draw_crowd):
        with pytest.raises(TrajformerError, match="no track '404'"):
            draw(empty_axes(), scene, [stranger])
    wild = replace(stranger, track_id=scene.agent_id[0], position=np.full((1, 12, 2), 1e7))
    assert render(plot_scene(scene, [wild], density=True)).startswith(b"\x89PNG")
