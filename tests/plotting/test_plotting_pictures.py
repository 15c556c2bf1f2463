"""Whole pictures: frame, title, legend, edge scenes, and files; the worst scenes come first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from support.pictures import empty_axes, fan, fans, labels, lines, path_of, render
from support.scenes import make_scene, transform_scene

from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting import scene as plots
from trajformer.plotting.errors import track_error
from trajformer.plotting.scene import choose_scenes, file_name, plot_scene, save_scene_plots
from trajformer.plotting.view import LARGEST_HALF_M, choose_view
from trajformer.scenes.scene import AgentRole, Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

# whole pictures ----------------------------------------------------------------------------------------------------


def test_axes_are_equal_square_and_named() -> None:
    scene = make_scene()
    ax = plot_scene(scene, fans(scene))
    assert ax.get_aspect() == 1.0 and (ax.get_xlabel(), ax.get_ylabel()) == ("x (m)", "y (m)")
    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()
    assert x1 - x0 == pytest.approx(y1 - y0) and x1 - x0 >= 50.0
    for line in (*lines(ax, "truth"), *lines(ax, "mode")):
        assert (path_of(line) > np.array([x0, y0])).all() and (path_of(line) < np.array([x1, y1])).all()


def test_title_has_id_city_and_errors() -> None:
    scene = make_scene(scene_id="0a0af725-fbc3-41de-b969-3be718f694e2")
    forecast = fan(scene, 0)
    error = track_error(scene, forecast)
    assert error is not None
    first, second = plot_scene(scene, [forecast]).get_title().split("\n")
    assert first == "0a0af725…, nowhere"
    assert second == f"minADE {error.min_ade_m:.2f} m, minFDE {error.min_fde_m:.2f} m (K = 6)"
    assert "track 1001, K = 6" in plot_scene(scene, [fan(scene, 1)]).get_title()
    assert "mean of 2 agents" in plot_scene(scene, [fan(scene, 1), fan(scene, 2)]).get_title()
    hidden = make_scene(with_future=False)
    assert plot_scene(hidden, [fan(hidden, 0)]).get_title() == f"{hidden.scene_id}, nowhere"


def test_legend_names_what_is_in_view_once() -> None:
    scene = make_scene()

    def names(ax: Axes) -> set[str]:
        legend = ax.get_legend()
        found = [text.get_text() for text in legend.get_texts() if text.get_text()] if legend else []
        assert len(set(found)) == len(found)
        return set(found)

    everything = {"focal agent", "scored agent", "other agent", "ego vehicle", "forecast (focal)", "forecast (others)"}
    everything |= {"recorded future", "vehicle lane", "bus lane", "bike lane", "crosswalk"}
    assert names(plot_scene(scene, fans(scene), radius=60.0)) == everything
    hidden = make_scene(with_future=False, with_map=False, num_scored=0, num_agents=1)
    assert names(plot_scene(hidden)) == {"focal agent"}
    far = replace(scene, point=scene.point + np.float32(500.0))
    assert not names(plot_scene(far)) & {"vehicle lane", "crosswalk"}
    assert plot_scene(scene, legend=False).get_legend() is None


def test_given_axes_are_used_and_no_global_figure_is_made() -> None:
    import matplotlib.pyplot as plt

    scene, ax = make_scene(), empty_axes()
    assert plot_scene(scene, fans(scene), ax=ax) is ax and ax.get_figure() is not plot_scene(scene).get_figure()
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    "scene",
    [
        make_scene(with_map=False),
        make_scene(with_future=False),
        make_scene(with_future=False, with_map=False, num_agents=1, num_scored=0),
        make_scene(num_agents=1, num_scored=0),
        make_scene(num_agents=40, num_scored=30),
        make_scene(num_agents=3, num_history=2, num_future=1),
        transform_scene(make_scene(), angle=2.5, shift=(20_000.0, -20_000.0)),
    ],
    ids=["no map", "no future", "bare test scene", "one agent", "many scored", "shortest", "far from origin"],
)
def test_edge_scenes_draw_with_and_without_forecasts(scene: Scene) -> None:
    for given in ([], fans(scene)):
        ax = plot_scene(scene, given)
        assert len(lines(ax, "mode:")) == sum(len(f.probability) for f in given)
        assert render(ax).startswith(b"\x89PNG")


def test_scene_without_a_focal_agent_or_any_target() -> None:
    scene = make_scene(num_scored=2)
    for role in (np.minimum(scene.agent_role, AgentRole.SCORED), scene.agent_role * 0):
        ax = plot_scene(replace(scene, agent_role=role.astype(np.uint8)), [fan(scene, 0), fan(scene, 1)])
        assert len(lines(ax, "mode:")) == 12 and len(labels(ax)) == 2


def test_focal_agent_unseen_at_the_last_step_has_no_box() -> None:
    scene = make_scene()
    for name in ("valid", "position", "heading", "velocity"):
        getattr(scene, name)[0, scene.num_history - 1] = 0
    ax = plot_scene(scene.validate(), [])
    assert not [c for c in ax.collections if c.get_gid() == "boxes:focal"]


def test_view_survives_a_diverged_forecast_and_obeys_a_radius() -> None:
    scene = make_scene()
    wild = replace(fan(scene, 0), position=fan(scene, 0).position * 1e4)
    view = choose_view(scene, [wild])
    assert view.half == LARGEST_HALF_M
    assert (np.abs(scene.position[0, scene.num_history - 1] - view.centre) < view.half).all()
    assert choose_view(scene, fans(scene), radius=20.0).half == 20.0
    render(plot_scene(scene, [wild]))


def test_scored_agents_widen_the_view_to_100_m_and_no_farther() -> None:
    scene = make_scene(num_scored=1)
    focal = choose_view(scene, [fan(scene, 0)])
    for shift, seen in ((30.0, True), (400.0, False)):
        moved = replace(scene, position=scene.position.copy())
        moved.position[1] = scene.position[0] + np.float32(shift)
        view = choose_view(moved, fans(moved))
        ahead = fan(moved, 0).position - moved.origin
        assert (np.abs(ahead - view.centre) < view.half).all() and view.half <= 50.0
        assert (np.abs(moved.position[1] - view.centre) < view.half).all() == seen
    assert view.half == focal.half


# files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> SceneStore:
    scenes = [make_scene(seed=n, scene_id=f"s{n}") for n in range(5)]
    scenes.append(make_scene(seed=5, scene_id="s5", with_future=False))
    write_shard(shard_path(tmp_path / "store", "val", 0), scenes, ShardInfo("synthetic", "val"))
    return SceneStore(tmp_path / "store", "val")


def off_by(store: SceneStore, metres: dict[int, float]) -> dict[str, list[TrackForecast]]:
    """Forecasts of the focal agent that end `metres` from the truth; its scored neighbour is predicted perfectly."""
    found = {}
    for index, error in metres.items():
        scene = store[index]
        future = scene.position[:2, scene.num_history :].astype(np.float64) + scene.origin
        if not future.size:
            future = np.zeros((2, scene.num_future, 2)) + scene.origin
        moved = [future[0] + (error, 0.0), future[1]]
        tracks = zip(scene.agent_id, moved, strict=False)
        found[scene.scene_id] = [TrackForecast(scene.scene_id, i, np.ones(1), xy[None]) for i, xy in tracks]
    return found


def test_worst_come_first_and_unknown_futures_do_not_count(store: SceneStore) -> None:
    forecasts = off_by(store, {0: 1.0, 1: 7.0, 3: 3.0, 5: 99.0})
    assert choose_scenes(store, forecasts, worst=2) == [1, 3]
    assert choose_scenes(store, forecasts, worst=10) == [1, 3, 0]
    assert choose_scenes(store, {}, worst=3) == []
    assert choose_scenes(store, forecasts, worst=1, scene_ids=["s4", "s1"]) == [4, 1]


def test_random_choice_is_repeatable_without_repeats(store: SceneStore) -> None:
    forecasts = off_by(store, {0: 1.0, 1: 7.0, 3: 3.0, 5: 99.0})
    first = choose_scenes(store, forecasts, random=3, seed=1)
    assert first == choose_scenes(store, forecasts, random=3, seed=1)
    assert len(set(first)) == 3 and set(first) <= {0, 1, 3, 5}
    assert {tuple(choose_scenes(store, {}, random=6, seed=s)) for s in range(5)} != {tuple(range(6))}
    assert choose_scenes(store, forecasts, worst=1, random=9)[0] == 1
    assert sorted(choose_scenes(store, forecasts, worst=1, random=9)) == [0, 1, 3, 5]
    assert choose_scenes(store, forecasts) == [0, 1, 3, 5] and choose_scenes(store, {}) == list(range(6))
    with pytest.raises(TrajformerError, match="no scene nope"):
        choose_scenes(store, {}, scene_ids=["nope"])


def test_saved_pictures_are_pngs_and_repeatable(store: SceneStore, tmp_path: Path) -> None:
    forecasts = off_by(store, {0: 1.0})
    paths = save_scene_plots(store, [5, 0], forecasts, tmp_path / "a", dpi=50, progress=False)
    assert paths == [tmp_path / "a" / "s5.png", tmp_path / "a" / "s0.png"]
    assert sorted(tmp_path.glob("a/.*")) == [] and len(list(tmp_path.glob("a/*"))) == 2
    for path in paths:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")
        assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (210, 260)
    again = save_scene_plots(store, [0], forecasts, tmp_path / "b", dpi=50, progress=False)
    assert again[0].read_bytes() == paths[1].read_bytes()


def test_a_failed_save_leaves_nothing(store: SceneStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(plots.os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        save_scene_plots(store, [0], {}, tmp_path / "a", dpi=50, progress=False)
    assert list((tmp_path / "a").iterdir()) == []


def test_scene_ids_cannot_leave_the_folder() -> None:
    assert file_name("0a0af725-fbc3") == "0a0af725-fbc3"
    names = [file_name(i) for i in ("../../etc/passwd", "..", "", "a/b", "a\\b", "a_b", ".hidden", "x" * 400, "é")]
    assert len(set(names)) == len(names)
    assert all("/" not in n and "\\" not in n and not n.startswith(".") and 0 < len(n) < 140 for n in names)
