"""Whole pictures: window, title, legend and edge cases; choice of scenes; files."""

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from support.pictures import empty_axes, fan, fans, lines, path_of, render
from support.scenes import make_scene, transform_scene

from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.plotting import scene as plotting
from trajformer.plotting.forecasts import draw_forecasts, match_forecasts, track_errors
from trajformer.plotting.recorded import draw_agents, draw_map
from trajformer.plotting.style import SCALE
from trajformer.plotting.view import MAX_HALF_M, View, choose_view
from trajformer.scenes.scene import PolylineKind, Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore


def view_of(scene: Scene, forecasts: list[TrackForecast]) -> View:
    return choose_view(scene, match_forecasts(scene, forecasts))


def test_axes_are_square_with_equal_scale_and_contain_all_trajectories() -> None:
    scene = make_scene()
    ax = plotting.plot_scene(scene, fans(scene)).axes[0]
    assert ax.get_aspect() == 1.0 and (ax.get_xlabel(), ax.get_ylabel()) == ("x (m)", "y (m)")
    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()
    assert x1 - x0 == pytest.approx(y1 - y0) and x1 - x0 >= 50.0
    for line in (*lines(ax, "truth"), *lines(ax, "mode")):
        assert (path_of(line) > np.array([x0, y0])).all() and (
            path_of(line) < np.array([x1, y1])
        ).all()


def test_pixels_and_road_lines_are_named() -> None:
    scene = make_scene()
    kind = np.where(
        scene.polyline_kind == PolylineKind.LANE_VEHICLE,
        PolylineKind.ROAD_EDGE,
        scene.polyline_kind,
    )
    kind[scene.polyline_kind == PolylineKind.LANE_BUS] = PolylineKind.ROAD_LINE
    ax = plotting.plot_scene(
        replace(scene, unit="px", polyline_kind=kind.astype(np.uint8)).validate(), fans(scene)
    ).axes[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "x (px)",
        "y (px)",
    ) and " px, minFDE " in ax.get_title()
    assert np.ptp(ax.get_xlim()) >= 50.0 * SCALE["px"]
    legend = ax.get_legend()
    assert legend is not None and {"road edge", "road line", "bike lane"} <= {
        text.get_text() for text in legend.get_texts()
    }


def test_title_has_id_city_and_errors() -> None:
    scene = make_scene(scene_id="0a0af725-fbc3-41de-b969-3be718f694e2")

    def title(*agents: int) -> str:
        return (
            plotting.plot_scene(scene, [fan(scene, agent) for agent in agents]).axes[0].get_title()
        )

    (error,) = track_errors(scene, match_forecasts(scene, [fan(scene, 0)]))
    assert (
        title(0)
        == f"0a0af725…18f694e2, nowhere\nminADE {error[0]:.2f} m, minFDE {error[1]:.2f} m (K = 6)"
    )
    assert "track 1001, K = 6" in title(1) and "mean of 2 agents" in title(1, 2)
    hidden = make_scene(with_future=False)
    assert (
        plotting.plot_scene(hidden, [fan(hidden, 0)]).axes[0].get_title()
        == f"{hidden.scene_id}, nowhere"
    )


def test_a_title_is_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    plotting.save_figure(plotting.plot_scene(replace(make_scene(), scene_id="run_$1_$x")), path)
    assert path.stat().st_size > 5000


def test_legend_names_each_visible_kind_once() -> None:
    scene = make_scene()

    def names(ax: Axes) -> list[str]:
        legend = ax.get_legend()
        return (
            sorted(text.get_text() for text in legend.get_texts() if text.get_text())
            if legend
            else []
        )

    expected = {
        "focal agent",
        "scored agent",
        "other agent",
        "ego vehicle",
        "forecast (focal)",
        "forecast (others)",
    }
    expected |= {"recorded future", "vehicle lane", "bus lane", "bike lane", "crosswalk"}
    wide = empty_axes()
    View(np.zeros(2), 60.0).apply(wide)
    draw_agents(draw_map(wide, scene), scene)
    assert names(
        plotting.add_legend(draw_forecasts(wide, scene, match_forecasts(scene, fans(scene))))
    ) == sorted(expected)
    hidden = make_scene(with_future=False, with_map=False, num_scored=0, num_agents=1)
    assert names(plotting.plot_scene(hidden).axes[0]) == ["focal agent"]
    far_map = replace(scene, point=scene.point + np.float32(500.0))
    assert not set(names(plotting.plot_scene(far_map).axes[0])) & {"vehicle lane", "crosswalk"}


def test_every_agent_with_a_forecast_has_its_recorded_future() -> None:
    scene = replace(make_scene(), agent_role=np.zeros(12, np.uint8))
    ax = plotting.plot_scene(scene, [fan(scene, 4), fan(scene, 7)]).axes[0]
    assert {line.get_gid() for line in lines(ax, "truth:")} == {
        f"truth:{scene.agent_id[agent]}" for agent in (4, 7)
    }
    assert "forecast" in [
        text.get_text() for text in ax.get_legend().get_texts()
    ]  # there are no others


def test_the_output_of_a_model_is_drawn_with_its_batch() -> None:
    scenes = [make_scene(seed=n, scene_id=f"s{n}") for n in range(2)]
    batch = collate(scenes, BatchConfig())
    forecast = ConstantVelocityConfig(modes=6).build()(batch.observation)
    ax = plotting.plot_scene(scenes[1], forecast, batch).axes[0]
    assert len(lines(ax, "mode:")) == 18 and "minFDE" in ax.get_title()
    with pytest.raises(ValueError, match="needs its batch"):
        plotting.plot_scene(scenes[1], forecast)


@pytest.mark.parametrize(
    "scene",
    [
        make_scene(with_map=False),
        make_scene(with_future=False, with_map=False, num_agents=1, num_scored=0),
        make_scene(num_agents=40, num_scored=30),
        make_scene(num_agents=3, num_history=2, num_future=1),
        transform_scene(make_scene(), angle=2.5, shift=(20_000.0, -20_000.0)),
    ],
    ids=["no map", "one test agent", "many scored", "shortest", "far from origin"],
)
def test_edge_cases_are_drawn_with_and_without_forecasts(scene: Scene) -> None:
    for forecasts in ([], fans(scene)):
        figure = plotting.plot_scene(scene, forecasts)
        assert len(lines(figure.axes[0], "mode:")) == sum(len(f.probability) for f in forecasts)
        assert render(figure).startswith(b"\x89PNG")


def test_view_has_a_maximum() -> None:
    scene = make_scene()
    diverged = replace(fan(scene, 0), position=fan(scene, 0).position * 1e4)
    view = view_of(scene, [diverged])
    assert view.half == MAX_HALF_M
    assert (np.abs(scene.position[0, scene.num_history - 1] - view.center) < view.half).all()
    render(plotting.plot_scene(scene, [diverged]))


@pytest.mark.parametrize(("shift", "visible"), [(30.0, True), (400.0, False)])
def test_scored_agents_widen_the_view_to_at_most_100_m(shift: float, visible: bool) -> None:
    scene = make_scene(num_scored=1)
    focal = view_of(scene, [fan(scene, 0)])
    scene.position[1] = scene.position[0] + np.float32(shift)
    view = view_of(scene, fans(scene))
    assert (
        np.abs(fan(scene, 0).position - scene.origin - view.center) < view.half
    ).all() and view.half <= 50.0
    assert (np.abs(scene.position[1] - view.center) < view.half).all() == visible
    assert visible or view.half == focal.half


@pytest.fixture
def store(tmp_path: Path) -> SceneStore:
    """Six scenes, the last one without a future."""
    scenes = [make_scene(seed=n, scene_id=f"s{n}", with_future=n < 5) for n in range(6)]
    write_shard(shard_path(tmp_path / "store", "val", 0), scenes, ShardInfo("synthetic", "val"))
    return SceneStore(tmp_path / "store", "val")


def with_errors(store: SceneStore, errors_m: dict[int, float]) -> dict[str, list[TrackForecast]]:
    """Forecasts with a given final error of the focal agent, and a perfect forecast of a scored agent."""
    forecasts = {}
    for index, error in errors_m.items():
        scene = store[index]
        future = np.zeros((2, scene.num_future, 2)) + scene.origin
        if scene.num_steps > scene.num_history:
            future += scene.position[:2, scene.num_history :]
        future[0, :, 0] += error
        tracks = zip(scene.agent_id, future, strict=False)
        forecasts[scene.scene_id] = [
            TrackForecast(scene.scene_id, i, np.ones(1), xy[None]) for i, xy in tracks
        ]
    return forecasts


def test_worst_scenes_come_first_and_unknown_futures_do_not_count(store: SceneStore) -> None:
    forecasts = with_errors(store, {0: 1.0, 1: 7.0, 3: 3.0, 5: 99.0})
    assert plotting.choose_scenes(store, forecasts, worst=2) == [1, 3]
    assert plotting.choose_scenes(store, forecasts, worst=10) == [1, 3, 0]
    assert plotting.choose_scenes(store, {}, worst=3) == []
    focal, other = forecasts["s0"]
    far = replace(other, position=other.position + 50.0)
    assert plotting.choose_scenes(store, forecasts | {"s0": [focal, far]}, worst=2) == [
        1,
        3,
    ]  # the title shows the focal agent
    assert plotting.choose_scenes(store, forecasts, worst=1, scene_ids=["s4", "s1"]) == [4, 1]


def test_random_scenes_are_repeatable_and_distinct(store: SceneStore) -> None:
    forecasts = with_errors(store, {0: 1.0, 1: 7.0, 3: 3.0, 5: 99.0})
    first = plotting.choose_scenes(store, forecasts, random=3, seed=1)
    assert first == plotting.choose_scenes(store, forecasts, random=3, seed=1)
    assert len(set(first)) == 3 and set(first) <= {0, 1, 3, 5}
    assert len({tuple(plotting.choose_scenes(store, {}, random=6, seed=s)) for s in range(5)}) > 1
    with_worst = plotting.choose_scenes(store, forecasts, worst=1, random=9)
    assert with_worst[0] == 1 and sorted(with_worst) == [0, 1, 3, 5]
    assert plotting.choose_scenes(store, forecasts) == [0, 1, 3, 5] and plotting.choose_scenes(
        store, {}
    ) == list(range(6))
    with pytest.raises(TrajformerError, match="no scene nope"):
        plotting.choose_scenes(store, {}, scene_ids=["nope"])


def test_saved_pictures_are_repeatable_pngs(store: SceneStore, tmp_path: Path) -> None:
    forecasts = with_errors(store, {0: 1.0})
    paths = plotting.save_scene_plots(store, [5, 0], forecasts, tmp_path / "a", progress=False)
    assert paths == [tmp_path / "a" / "s5.png", tmp_path / "a" / "s0.png"]
    assert len(list((tmp_path / "a").iterdir())) == 2
    for path in paths:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")
        assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (630, 780)
    again = plotting.save_scene_plots(store, [0], forecasts, tmp_path / "b", progress=False)
    assert again[0].read_bytes() == paths[1].read_bytes()


def test_scenes_are_panels_of_one_picture(store: SceneStore, tmp_path: Path) -> None:
    (path,) = plotting.save_scene_plots(
        store, [5, 0], with_errors(store, {0: 1.0}), tmp_path / "both.png", progress=False
    )
    data = path.read_bytes()
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (2 * 630, 780)
    assert plt.get_fignums() == []


def test_scene_ids_give_unique_file_names_inside_the_folder() -> None:
    assert plotting.file_name("0a0af725-fbc3") == "0a0af725-fbc3"
    names = [
        plotting.file_name(i)
        for i in ("../../etc/passwd", "..", "", "a/b", "a\\b", "a_b", ".hidden", "x" * 400, "é")
    ]
    assert len(set(names)) == len(names)
    assert all(
        "/" not in n and "\\" not in n and not n.startswith(".") and 0 < len(n) < 140 for n in names
    )
