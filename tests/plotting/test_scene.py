"""Whole pictures: window, title, legend and edge cases; choice of scenes; files."""

from dataclasses import replace
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from support.pictures import empty_axes, fan, fans, labels, lines, path_of, render
from support.scenes import make_scene, transform_scene

from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.plotting import choice, files
from trajformer.plotting import scene as plotting
from trajformer.plotting.forecasts import draw_forecasts, match_forecasts, track_errors
from trajformer.plotting.legend import add_legend
from trajformer.plotting.recorded import draw_agents, draw_map
from trajformer.plotting.style import SCALE
from trajformer.plotting.view import MAX_FOCAL_HALF_M, View, choose_view
from trajformer.scenes.scene import PolylineKind, Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

Forecasts = dict[str, list[TrackForecast]]  # by scene id


def view_of(scene: Scene, forecasts: list[TrackForecast]) -> View:
    return choose_view(scene, match_forecasts(scene, forecasts))


def shows(view: View, points: np.ndarray) -> bool:
    """All points [..., 2] are inside."""
    return bool((np.abs(points - view.center) < view.half).all())


def texts_of_legend(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    if legend is None:
        return []
    return sorted(text.get_text() for text in legend.get_texts() if text.get_text())


# ---- axes, title and legend --------------------------------------------------------------------


def test_axes_are_square_with_equal_scale_and_contain_all_trajectories() -> None:
    scene = make_scene()
    ax = plotting.plot_scene(scene, fans(scene)).axes[0]
    assert ax.get_aspect() == 1.0
    assert ax.get_xlabel() == "x (m)"
    assert ax.get_ylabel() == "y (m)"
    low, high = np.transpose([ax.get_xlim(), ax.get_ylim()])
    width, height = high - low
    assert width == pytest.approx(height)
    assert width >= 50.0
    for line in (*lines(ax, "truth"), *lines(ax, "mode")):
        assert (path_of(line) > low).all()
        assert (path_of(line) < high).all()


def test_pixels_are_named() -> None:
    scene = replace(make_scene(), unit="px")
    ax = plotting.plot_scene(scene, fans(scene)).axes[0]
    assert ax.get_xlabel() == "x (px)"
    assert ax.get_ylabel() == "y (px)"
    assert " px, minFDE " in ax.get_title()
    assert np.ptp(ax.get_xlim()) >= 50.0 * SCALE["px"]
    top, bottom = ax.get_ylim()
    assert top > bottom, "y points down in a video"
    assert "focal agent" in texts_of_legend(ax)


def test_road_lines_are_named() -> None:
    scene = make_scene()
    kind = scene.polyline_kind.copy()
    kind[scene.polyline_kind == PolylineKind.LANE_VEHICLE] = PolylineKind.ROAD_EDGE
    kind[scene.polyline_kind == PolylineKind.LANE_BUS] = PolylineKind.ROAD_LINE
    scene = replace(scene, polyline_kind=kind).validate()
    ax = plotting.plot_scene(scene, fans(scene)).axes[0]
    assert {"road edge", "road line", "bike lane"} <= set(texts_of_legend(ax))


def test_title_has_id_city_and_errors() -> None:
    scene = make_scene(scene_id="0a0af725-fbc3-41de-b969-3be718f694e2")

    def title(*agents: int) -> str:
        forecasts = [fan(scene, agent) for agent in agents]
        return plotting.plot_scene(scene, forecasts).axes[0].get_title()

    [(ade, fde)] = track_errors(scene, match_forecasts(scene, [fan(scene, 0)]))
    errors = f"minADE {ade:.2f} m, minFDE {fde:.2f} m (K = 6)"
    assert title(0) == f"0a0af725…18f694e2, nowhere\n{errors}"
    assert "track 1001, K = 6" in title(1)
    assert "mean of 2 agents" in title(1, 2)


def test_title_has_no_errors_without_a_recorded_future() -> None:
    scene = make_scene(with_future=False)
    ax = plotting.plot_scene(scene, [fan(scene, 0)]).axes[0]
    assert ax.get_title() == f"{scene.scene_id}, nowhere"


def test_a_title_is_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    files.save_figure(plotting.plot_scene(replace(make_scene(), scene_id="run_$1_$x")), path)
    assert path.stat().st_size > 5000


def test_legend_names_each_visible_kind_once() -> None:
    scene = make_scene()
    ax = empty_axes()
    View(np.zeros(2), 60.0).apply(ax)
    draw_map(ax, scene)
    draw_agents(ax, scene)
    draw_forecasts(ax, scene, match_forecasts(scene, fans(scene)))
    add_legend(ax)
    assert texts_of_legend(ax) == [
        "bike lane",
        "bus lane",
        "crosswalk",
        "ego vehicle",
        "focal agent",
        "forecast (focal)",
        "forecast (others)",
        "other agent",
        "recorded future",
        "scored agent",
        "vehicle lane",
    ]


def test_legend_does_not_name_what_is_not_visible() -> None:
    one_agent = make_scene(with_future=False, with_map=False, num_scored=0, num_agents=1)
    assert texts_of_legend(plotting.plot_scene(one_agent).axes[0]) == ["focal agent"]
    scene = make_scene()
    far_map = replace(scene, point=scene.point + np.float32(500.0))
    names = texts_of_legend(plotting.plot_scene(far_map).axes[0])
    assert not {"vehicle lane", "crosswalk"} & set(names)


def test_every_agent_with_a_forecast_has_its_recorded_future() -> None:
    scene = replace(make_scene(), agent_role=np.zeros(12, np.uint8))
    ax = plotting.plot_scene(scene, [fan(scene, 4), fan(scene, 7)]).axes[0]
    truths = {line.get_gid() for line in lines(ax, "truth:")}
    assert truths == {f"truth:{scene.agent_id[4]}", f"truth:{scene.agent_id[7]}"}
    assert "forecasts by agent" in texts_of_legend(ax), "not '(others)' without a focal agent"


# ---- input -------------------------------------------------------------------------------------


def test_the_output_of_a_model_is_drawn_with_its_batch() -> None:
    scenes = [make_scene(seed=n, scene_id=f"s{n}") for n in range(2)]
    batch = collate(scenes, BatchConfig())
    forecast = ConstantVelocityConfig(modes=6).build()(batch.observation)
    ax = plotting.plot_scene(scenes[1], forecast, batch).axes[0]
    assert len(lines(ax, "mode:")) == 18
    assert "minFDE" in ax.get_title()
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
        modes = sum(len(forecast.probability) for forecast in forecasts)
        assert len(lines(figure.axes[0], "mode:")) == modes
        assert render(figure).startswith(b"\x89PNG")


# ---- view --------------------------------------------------------------------------------------


def test_a_diverged_forecast_is_cut_off() -> None:
    scene = make_scene()
    diverged = replace(fan(scene, 0), position=fan(scene, 0).position * 1e4)
    view = view_of(scene, [diverged])
    assert view.half <= MAX_FOCAL_HALF_M
    assert shows(view, scene.position[0, scene.num_history - 1])
    render(plotting.plot_scene(scene, [diverged]))


@pytest.mark.parametrize(("shift", "visible"), [(70.0, True), (400.0, False)])
def test_other_targets_widen_the_view_of_a_focal_agent_to_at_most_240_m(
    shift: float, visible: bool
) -> None:
    scene = make_scene(num_scored=1)
    of_focal_agent = view_of(scene, [fan(scene, 0)])
    scene.position[1] = scene.position[0] + np.float32(shift)
    view = view_of(scene, fans(scene))
    assert view.half <= MAX_FOCAL_HALF_M
    assert shows(view, fan(scene, 0).position - scene.origin)
    assert shows(view, scene.position[1]) == visible
    if not visible:
        assert view.half == of_focal_agent.half


def test_without_a_focal_agent_all_agents_with_a_forecast_are_inside() -> None:
    scene = make_scene(num_agents=9)
    role = np.ones_like(scene.agent_role)
    scene = replace(scene, agent_role=role)
    for agent in range(9):
        scene.position[agent] += np.float32(60.0 * agent)
    view = view_of(scene, fans(scene))
    assert shows(view, scene.position[scene.valid])


def test_selected_agents_fill_the_view_and_the_others_are_context() -> None:
    scene = make_scene(num_scored=3)
    chosen = scene.agent_id[2]
    ax = plotting.plot_scene(scene, fans(scene), agents=[chosen], ids=True).axes[0]
    assert {str(line.get_gid()).split(":")[1] for line in lines(ax, "mode:")} == {chosen}
    assert [line.get_gid() for line in lines(ax, "truth:")] == [f"truth:{chosen}"]
    assert labels(ax)[0].get_text() == chosen
    with pytest.raises(TrajformerError, match="has no agent '404'"):
        plotting.plot_scene(scene, agents=["404"])


def test_zoom_divides_the_width() -> None:
    scene = make_scene()
    whole = plotting.plot_scene(scene, fans(scene)).axes[0]
    half = plotting.plot_scene(scene, fans(scene), zoom=2.0).axes[0]
    assert np.ptp(half.get_xlim()) == pytest.approx(np.ptp(whole.get_xlim()) / 2)
    focal = scene.position[0, scene.num_history - 1]
    assert np.mean([half.get_xlim(), half.get_ylim()], 1) == pytest.approx(focal)


def test_ticks_are_coordinates_of_the_recording() -> None:
    scene = replace(make_scene(), origin=np.array([682_345.5, 5_403_721.25]))
    ax = plotting.plot_scene(scene, fans(scene)).axes[0]
    for axis, start in ((ax.xaxis, scene.origin[0]), (ax.yaxis, scene.origin[1])):
        ticks = axis.get_majorticklocs()
        texts = axis.get_major_formatter().format_ticks(ticks.tolist())
        assert [float(text) for text in texts] == pytest.approx(ticks + start, abs=1e-3)


def test_worlds_have_one_color_for_all_agents() -> None:
    scene = make_scene(num_scored=3)
    ax = plotting.plot_scene(scene, fans(scene), color="world").axes[0]
    colors = set()
    for mode in range(6):
        of_world = {line.get_color() for line in lines(ax, "mode:") if _mode_of(line) == mode}
        assert len(of_world) == 1
        colors |= of_world
    assert len(colors) == 6
    probability = fans(scene)[0].probability
    expected = [f"world {k + 1}: {value:.2f}" for k, value in enumerate(probability)]
    assert set(expected) <= set(texts_of_legend(ax))
    other = replace(fan(scene, 1), probability=np.full(6, 1 / 6))
    with pytest.raises(TrajformerError, match="no joint futures; forecast with --joint"):
        plotting.plot_scene(scene, [fan(scene, 0), other], color="world")


def _mode_of(line: Line2D) -> int:
    return int(str(line.get_gid()).split(":")[2])


def test_types_have_names_in_the_legend() -> None:
    scene = make_scene(num_scored=3)
    ax = plotting.plot_scene(scene, fans(scene), color="type").axes[0]
    assert {"vehicle", "pedestrian"} <= set(texts_of_legend(ax))


# ---- choice of scenes --------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> SceneStore:
    """Six scenes, the last one without a future."""
    scenes = [make_scene(seed=n, scene_id=f"s{n}", with_future=n < 5) for n in range(6)]
    write_shard(shard_path(tmp_path / "store", "val", 0), scenes, ShardInfo("synthetic", "val"))
    return SceneStore(tmp_path / "store", "val")


def with_errors(store: SceneStore, errors_m: dict[int, float]) -> Forecasts:
    """Forecasts with a given final error of the focal agent, and an exact one of a scored agent."""
    forecasts = {}
    for index, error in errors_m.items():
        scene = store[index]
        future = np.zeros((2, scene.num_future, 2)) + scene.origin
        if scene.num_steps > scene.num_history:
            future += scene.position[:2, scene.num_history :]
        future[0, :, 0] += error
        tracks = []
        for track_id, path in zip(scene.agent_id[:2], future, strict=True):
            tracks.append(TrackForecast(scene.scene_id, track_id, np.ones(1), path[None]))
        forecasts[scene.scene_id] = tracks
    return forecasts


@pytest.fixture
def forecasts(store: SceneStore) -> Forecasts:
    """The worst scenes are 1, 3 and 0; scene 5 has no future to compare with."""
    return with_errors(store, {0: 1.0, 1: 7.0, 3: 3.0, 5: 99.0})


def test_worst_scenes_come_first_and_unknown_futures_do_not_count(
    store: SceneStore, forecasts: Forecasts
) -> None:
    assert choice.choose_scenes(store, forecasts, worst=2) == [1, 3]
    assert choice.choose_scenes(store, forecasts, worst=10) == [1, 3, 0]
    assert choice.choose_scenes(store, {}, worst=3) == []


def test_worst_scenes_are_those_of_the_focal_agent(store: SceneStore, forecasts: Forecasts) -> None:
    focal, other = forecasts["s0"]
    forecasts["s0"] = [focal, replace(other, position=other.position + 50.0)]
    assert choice.choose_scenes(store, forecasts, worst=2) == [1, 3]


def test_named_scenes_come_before_the_worst(store: SceneStore, forecasts: Forecasts) -> None:
    names = ["s4", "s1"]
    assert choice.choose_scenes(store, forecasts, worst=1, scene_ids=names) == [4, 1]
    with pytest.raises(TrajformerError, match="no scene nope"):
        choice.choose_scenes(store, {}, scene_ids=["nope"])


def test_random_scenes_are_repeatable_and_distinct(store: SceneStore, forecasts: Forecasts) -> None:
    chosen = choice.choose_scenes(store, forecasts, random=3, seed=1)
    assert chosen == choice.choose_scenes(store, forecasts, random=3, seed=1)
    assert len(set(chosen)) == 3
    assert set(chosen) <= {0, 1, 3, 5}
    orders = {tuple(choice.choose_scenes(store, {}, random=6, seed=seed)) for seed in range(5)}
    assert len(orders) > 1


def test_random_scenes_are_others_than_the_worst(store: SceneStore, forecasts: Forecasts) -> None:
    chosen = choice.choose_scenes(store, forecasts, worst=1, random=9)
    assert chosen[0] == 1
    assert sorted(chosen) == [0, 1, 3, 5]


def test_all_scenes_with_forecasts_are_the_default(store: SceneStore, forecasts: Forecasts) -> None:
    assert choice.choose_scenes(store, forecasts) == [0, 1, 3, 5]
    assert choice.choose_scenes(store, {}) == [0, 1, 2, 3, 4, 5]


# ---- files -------------------------------------------------------------------------------------


def png_size(path: Path) -> tuple[int, int]:
    """Width and height in pixels of a complete PNG file."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def test_saved_pictures_are_repeatable_pngs(store: SceneStore, tmp_path: Path) -> None:
    forecasts = with_errors(store, {0: 1.0})
    folder = tmp_path / "a"
    paths = files.save_scene_plots(store, [5, 0], forecasts, folder, progress=False)
    assert paths == [folder / "s5.png", folder / "s0.png"]
    assert len(list(folder.iterdir())) == 2
    for path in paths:
        width, height = png_size(path)
        assert width == 640
        assert 700 < height < 800, "as high as the legend"
    [again] = files.save_scene_plots(store, [0], forecasts, tmp_path / "b", progress=False)
    assert again.read_bytes() == paths[1].read_bytes()


def test_scenes_are_panels_of_one_picture(store: SceneStore, tmp_path: Path) -> None:
    forecasts = with_errors(store, {0: 1.0})
    out = tmp_path / "both.png"
    paths = files.save_scene_plots(store, [5, 0], forecasts, out, progress=False)
    assert paths == [out]
    width, _ = png_size(out)
    assert 1280 <= width <= 1281
    assert plt.get_fignums() == []


def test_scene_ids_give_unique_file_names_inside_the_folder() -> None:
    assert files.file_name("0a0af725-fbc3") == "0a0af725-fbc3"
    ids = ["../../etc/passwd", "..", "", "a/b", "a\\b", "a_b", ".hidden", "x" * 400, "é"]
    names = [files.file_name(scene_id) for scene_id in ids]
    assert len(set(names)) == len(names)
    for name in names:
        assert "/" not in name
        assert "\\" not in name
        assert not name.startswith(".")
        assert 0 < len(name) < 140


def test_settings_of_the_program_do_not_change_pictures(store: SceneStore, tmp_path: Path) -> None:
    plain, other = tmp_path / "plain.png", tmp_path / "other.png"
    files.save_scene_plots(store, [0], {}, plain, progress=False)
    settings = {"text.usetex": True, "lines.linewidth": 9, "savefig.bbox": "tight", "font.size": 40}
    with matplotlib.rc_context(settings):
        files.save_scene_plots(store, [0], {}, other, progress=False)
    assert other.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_vector_pictures_are_repeatable_and_replaceable(
    store: SceneStore, tmp_path: Path, suffix: str
) -> None:
    folder = tmp_path / "a"
    contents = []
    for _ in range(2):
        [path] = files.save_scene_plots(store, [0], {}, folder, progress=False, suffix=suffix)
        assert path == folder / f"s0.{suffix}"
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    path.write_bytes(contents[0].replace(b"trajformer", b"other"))
    with pytest.raises(TrajformerError, match="no picture of trajformer"):
        files.save_scene_plots(store, [0], {}, folder, progress=False, suffix=suffix)


def test_notebooks_show_a_figure() -> None:
    figure = plotting.plot_scene(make_scene())
    assert isinstance(figure, plotting.SceneFigure)
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("origin", [(0.0, 0.0), (600.0, -2250.0), (3e5, 5.4e6), (0.0, -123456.0)])
def test_the_label_of_the_y_axis_is_inside_the_picture(origin: tuple[float, float]) -> None:
    scene = replace(make_scene(6), origin=np.array(origin))
    figure = plotting.draw_picture([scene], [[]])
    figure.canvas.draw()
    label = figure.axes[0].yaxis.label.get_window_extent()
    assert 0 < label.x0 < 20  # pixels
