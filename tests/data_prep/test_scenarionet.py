"""The reader of ScenarioNet: a small data set with known values, broken files, and a real sample.

The real sample is compared with its pickles.
"""

import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.cli import run
from support.hostile import read_checked
from support.scenarios import CORNER, NAMES, PERIOD_S, entry, scenario, track, write

from data_prep.readers.scenarionet.reader import ScenarioNet
from trajformer.errors import SceneError
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.scene import (
    AgentKind,
    AgentRole,
    EdgeKind,
    LaneFlag,
    LightState,
    PolylineKind,
    Scene,
    scenes_equal,
)
from trajformer.scenes.store import SceneStore
from trajformer.testing.readers import Damage, change_bytes, read_all

H, F = 8, 7
READER = ScenarioNet(history_s=0.8, future_s=0.7)


def scenes(reader: ScenarioNet, raw: Path, split: str = "val") -> list[Scene]:
    """All scenes of a split, none of which may be refused."""
    outcomes = read_all(reader, raw, split).values()
    assert all(isinstance(outcome, Scene) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Scene)]


def test_tracks_map_and_lights_of_a_scenario(tmp_path: Path) -> None:
    write(tmp_path / "val", scenario())
    [scene] = scenes(READER, tmp_path)
    assert (scene.scene_id, scene.source, scene.city) == ("sd_small_1", "scenarionet", "town")
    assert (scene.period_s, scene.num_history, scene.num_future) == (PERIOD_S, H, F)
    assert scene.num_steps == H + F
    assert scene.agent_id == ("car", "AV", "walker", "cone")
    assert scene.agent_kind.tolist() == [
        AgentKind.VEHICLE,
        AgentKind.VEHICLE,
        AgentKind.PEDESTRIAN,
        AgentKind.CONSTRUCTION,
    ]
    assert scene.agent_role.tolist() == [AgentRole.FOCAL, *[AgentRole.CONTEXT] * 3]
    assert np.allclose(scene.origin, CORNER + np.array([7.0, 0.0]))
    time = PERIOD_S * np.arange(H + F)[:, None] - 0.7
    car, ego, walker, _ = range(4)
    assert np.allclose(scene.position[car], time * (10.0, 0.0), atol=1e-4)
    assert np.allclose(scene.position[ego], (-21.4, 0.0) + time * (8.0, 0.0), atol=1e-4)
    assert scene.valid.sum(1).tolist() == [15, 15, 8, 15]
    assert scene.valid[walker, 7:].all()
    # The recorded velocities are zero, and the walker's second step is not observed.
    assert np.allclose(scene.velocity[car], (10.0, 0.0), atol=1e-3)
    assert np.allclose(scene.velocity[ego], (8.0, 0.0), atol=1e-3)
    assert np.allclose(scene.velocity[walker, 7], 0.0, atol=1e-3)
    assert np.allclose(scene.velocity[walker, 8:], (0.0, -1.0), atol=1e-3)
    assert np.allclose(scene.heading[walker, 7:], -np.pi / 2)
    assert np.allclose(scene.heading[car], 0.0, atol=1e-6)
    assert scene.agent_size.tolist() == [[4.5, 2.0]] * 4

    assert scene.polyline_kind.tolist() == [
        PolylineKind.LANE_VEHICLE,
        PolylineKind.ROAD_LINE,
        PolylineKind.LANE_VEHICLE,
        PolylineKind.CROSSWALK,
        PolylineKind.ROAD_EDGE,
    ]  # the bike lane is far
    assert scene.polyline_flags.tolist() == [0, 0, LaneFlag.INTERSECTION, 0, 0]
    assert np.diff(scene.polyline_offset).tolist() == [2, 2, 2, 4, 2]  # the crosswalk is closed
    connection = scene.polyline(2) + scene.origin - CORNER
    assert np.allclose(connection, [(20.0, 0.0), (40.0, 0.0)], atol=1e-4)
    edges = {*zip(*scene.edge.tolist(), scene.edge_kind.tolist(), strict=True)}
    assert edges == {
        (0, 2, EdgeKind.SUCCESSOR),
        (2, 0, EdgeKind.PREDECESSOR),
        (2, 0, EdgeKind.LEFT),
    }
    states = [
        LightState.UNKNOWN,
        LightState.RED,
        LightState.YELLOW,
        LightState.GREEN,
        LightState.UNKNOWN,
    ]
    assert scene.light_lane.tolist() == [0]
    assert scene.light_state.tolist() == [states * 3]


def test_windows_roles_and_splits_follow_the_options(tmp_path: Path) -> None:
    first = scenario()
    second = scenario()
    second["metadata"] |= {"tracks_to_predict": {"car": {}, "walker": {}}, "sdc_id": 7}
    tracks = second["tracks"]
    second["tracks"] = {7: tracks["ego"], "car": tracks["car"], "walker": tracks["walker"]}
    second["dynamic_map_states"] = {}
    write(tmp_path / "train", first, second)
    write(tmp_path / "val", first)
    reader = replace(READER, stride_s=0.5)
    assert reader.splits(tmp_path) == ["train", "val"]
    assert reader.splits(tmp_path / "train") == ["scenarios"]
    write(tmp_path / "raw" / "scenarios", first)
    assert reader.splits(tmp_path / "raw") == ["scenarios"]
    assert len(scenes(reader, tmp_path / "raw", "scenarios")) == 3
    windows = scenes(reader, tmp_path, "train")
    names = [scene.scene_id for scene in windows]
    assert names[:3] == ["sd_small_1-000", "sd_small_1-005", "sd_small_1-010"]
    assert names[3:] == ["sd_small_2-000", "sd_small_2-005", "sd_small_2-010"]
    [whole] = scenes(replace(READER, history_s=2.0, future_s=0.5), tmp_path)
    for scene, start in zip(windows, (0, 5, 10), strict=False):
        steps = slice(start, start + H + F)
        shift = (whole.origin - scene.origin).astype(np.float32)
        moved = np.where(scene.valid[..., None], whole.position[:, steps] + shift, 0.0)
        assert np.allclose(moved, scene.position, atol=1e-3)
        assert np.array_equal(scene.light_state, whole.light_state[:, steps])
    assert windows[3].agent_id == ("AV", "car", "walker")
    assert not len(windows[3].light_state)
    assert windows[3].agent_role.tolist() == [0, AgentRole.SCORED, AgentRole.SCORED]
    [all_users] = scenes(replace(READER, scored="all"), tmp_path)
    assert all_users.agent_role.tolist() == [AgentRole.SCORED, 0, AgentRole.SCORED, 0]
    assert scenes(replace(READER, map_radius_m=500.0), tmp_path)[0].num_polylines == 6


def test_the_future_does_not_change_the_history(tmp_path: Path) -> None:
    """Values after the last observed step change; also recorded velocities, which are not used."""
    other = scenario()
    for one in other["tracks"].values():
        one["state"]["position"][H:] += 3.0
        one["state"]["velocity"][:] = 99.0
        for name in ("heading", "length", "width"):
            one["state"][name][H:] += 0.1
    write(tmp_path / "a" / "val", scenario())
    write(tmp_path / "b" / "val", other)
    [before], [after] = (scenes(READER, tmp_path / name) for name in "ab")
    for name in ("position", "heading", "velocity", "valid"):
        values_before = getattr(before, name)
        values_after = getattr(after, name)
        assert np.array_equal(values_before[:, :H], values_after[:, :H]), name
    observed = before.valid[:, :H].any(1)
    assert np.array_equal(before.agent_size[observed], after.agent_size[observed])


def ts(change: Any) -> Damage:
    return entry("metadata", "ts", change=change)


def state(key: str, change: Any) -> Damage:
    return entry("tracks", "car", "state", key, change=change)


def feature(key: str, change: Any) -> Damage:
    return entry("map_features", "10", key, change=change)


def nan_at(index: int | slice) -> Any:
    def change(values: np.ndarray) -> np.ndarray:
        changed = np.array(values, np.float64)
        changed[index] = np.nan
        return changed

    return change


LIGHT = ("dynamic_map_states", "3", "state", "object_state")
CAR = r"tracks\[car\]\."
LANE = r"map_features\[10\]\."
REQUIRED = ("length", "metadata", "tracks", "map_features", "dynamic_map_states")
BROKEN: dict[str, tuple[Damage, str]] = {
    **{
        f"no {key}": (entry(key, drop=True), f"{key}: missing, expected (dict|int)")
        for key in REQUIRED
    },
    "no tracks": (entry("tracks", value={}), "0 steps of all tracks, expected 1"),
    "no type": (entry("tracks", "car", "type", drop=True), rf"{CAR}type: missing, expected str"),
    "NaN positions": (
        state("position", nan_at(slice(3, 9))),
        rf"{CAR}state\.position: NaN, negative or over 1e\+08 at a valid step",
    ),
    "half valid": (
        state("valid", lambda v: v / 2),
        rf"{CAR}state\.valid: NaN, negative or over 1 at a valid step",
    ),
    "one column": (
        state("position", lambda v: v[:, 0]),
        rf"{CAR}state\.position: .* shape \(25,\), expected .* \[25, 2\]",
    ),
    "a step less": (
        state("heading", lambda v: v[1:]),
        rf"{CAR}state\.heading: .* shape \(24,\), expected numbers \[25, 1\]",
    ),
    "a list": (state("heading", list), rf"{CAR}state\.heading: of type list, expected ndarray"),
    "another length": (entry("length", value=24), r"length: 24, metadata\.ts has 25 timestamps"),
    "a timestamp less": (ts(lambda v: v[1:]), r"length: 25, metadata\.ts has 24 timestamps"),
    "NaN timestamp": (
        ts(nan_at(slice(3, 9))),
        r"metadata\.ts: timestamps are NaN or over 1e12",
    ),
    "2 Hz": (
        ts(lambda v: v * 5),
        r"metadata\.ts: 0\.5 s between steps, expected 0\.1 s \(period_s\)",
    ),
    "milliseconds": (ts(lambda v: v * 1000), r"metadata\.ts: 100 s between steps, expected 0\.1 s"),
    "irregular": (
        ts(lambda v: v + 0.05 * (v > 1.15)),
        r"metadata\.ts: 0\.1 to 0\.15 s between steps, expected 0\.1 s",
    ),
    "no ego": (entry("metadata", "sdc_id", value="taxi"), r"metadata\.sdc_id: no track 'taxi'"),
    "another AV": (
        entry("tracks", "AV", value=track("VEHICLE", (0.0, 9.0), (1.0, 0.0))),
        r"tracks\[AV\]: this id is reserved",
    ),
    "late target": (
        entry("metadata", "tracks_to_predict", value={"none": {}}),
        r"none of 1 listed tracks is seen in the last",
    ),
    "many copies": (
        entry("tracks", change=lambda v: copies(v["ego"], 41_000) | v),
        "steps of all tracks, expected 1 to",
    ),
    "many lanes": (
        entry("map_features", change=lambda v: copies(v["10"], 20_000)),
        "20001 map_features, expected 1 to 20000",
    ),
    "many states": (
        entry("dynamic_map_states", change=lambda v: copies(v["3"], 41_000)),
        "states of traffic lights, expected",
    ),
    "many points": (
        feature("polyline", lambda v: np.zeros((1_000_001, 2))),
        "points, expected 1 to 1000000",
    ),
    "code": (
        change_bytes(lambda data: pickle.dumps({"metadata": eval}, 4)),
        r"the name builtins\.eval is not allowed",
    ),
    "an older protocol": (
        change_bytes(lambda data: pickle.dumps(pickle.loads(data), 2)),
        "pickle protocol 2, expected 4 or 5",
    ),
    "a short scenario": (
        change_bytes(lambda data: pickle.dumps(shortened(14), 4)),
        "length: 14 steps, a scene has 15",
    ),
}


DETAILS: dict[str, tuple[Damage, str]] = {
    "NaN position": (
        state("position", nan_at(3)),
        r"tracks: state\.position: NaN, negative or over 1e\+08 at a valid step",
    ),
    "a track without type": (
        entry("tracks", "walker", "type", drop=True),
        "tracks: type: missing, expected str",
    ),
    "a track of another length": (
        entry("tracks", "walker", "state", "heading", change=lambda v: v[1:]),
        r"tracks: state\.heading: float64 of shape \(24,\), expected numbers \[25, 1\]",
    ),
    "unknown type": (
        entry("tracks", "walker", "type", value="UFO"),
        "tracks: unknown type 'UFO'",
    ),
    "unknown feature": (feature("type", lambda v: "RIVER"), "map_features: unknown type 'RIVER'"),
    "no type": (
        entry("map_features", "10", "type", drop=True),
        "map_features: type: missing, expected str",
    ),
    "NaN point": (
        feature("polyline", nan_at(1)),
        r"map_features: polyline: .*NaN.*expected points \[P, 2\]",
    ),
    "one exit": (
        feature("exit_lanes", lambda v: "12"),
        "map_features: exit_lanes: expected a list of at most 32 lanes",
    ),
    "light": (
        entry(*LIGHT, change=lambda v: ["BLUE", *v[1:]]),
        "dynamic_map_states: state.object_state: unknown value 'BLUE'",
    ),
    "a state less": (
        entry(*LIGHT, change=lambda v: v[1:]),
        "dynamic_map_states: state.object_state: expected a state for each timestamp",
    ),
}


@pytest.mark.parametrize("case", DETAILS)
def test_an_unusable_detail_of_a_scenario_is_dropped(tmp_path: Path, case: str) -> None:
    write(tmp_path / "raw" / "val", scenario())
    damage, cause = DETAILS[case]
    path = tmp_path / "raw" / "val" / "part_0" / NAMES[0]
    damage(path)
    with collect_dropped() as dropped:
        [outcome] = read_all(READER, tmp_path / "raw", "val").values()
    assert isinstance(outcome, Scene)
    [(file, text)] = dropped
    assert file == path
    assert re.search(cause, text)


@pytest.mark.parametrize("value", [None, {}])
def test_without_a_list_all_road_users_are_scored(tmp_path: Path, value: Any) -> None:
    """As in nuPlan."""
    write(tmp_path / "val", scenario())
    entry("metadata", "tracks_to_predict", value=value)(tmp_path / "val" / "part_0" / NAMES[0])
    [listed] = read_all(READER, tmp_path, "val").values()
    [expected] = read_all(replace(READER, scored="all"), tmp_path, "val").values()
    assert isinstance(listed, Scene) and isinstance(expected, Scene)
    assert scenes_equal(listed, expected)


def test_a_scenario_of_the_observed_steps_has_no_future(tmp_path: Path) -> None:
    write(tmp_path / "val", shortened(8))
    [scene] = scenes(READER, tmp_path, "val")
    assert (scene.num_steps, scene.num_history, scene.num_future) == (8, 8, 7)


def copies(value: Any, count: int) -> dict[str, Any]:
    """The same value under many keys, which takes little space in a pickle."""
    return dict.fromkeys(map(str, range(100, 100 + count)), value)


def shortened(steps: int) -> dict[str, Any]:
    data = scenario()
    data["metadata"]["ts"] = data["metadata"]["ts"][:steps]
    data["length"] = steps
    data["dynamic_map_states"] = {}
    for one in data["tracks"].values():
        one["state"] = {key: value[:steps] for key, value in one["state"].items()}
    return data


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_scenario_is_refused_with_file_and_field(tmp_path: Path, case: str) -> None:
    write(tmp_path / "raw" / "val", scenario())
    damage, reason = BROKEN[case]
    damage(tmp_path / "raw" / "val" / "part_0" / NAMES[0])
    [message], growth_mb = read_checked(READER, tmp_path / "raw")
    assert isinstance(message, str)
    assert re.search(rf"{NAMES[0]}: .*{reason}", message), message
    assert growth_mb < 500


def test_a_pause_refuses_its_windows_only(tmp_path: Path) -> None:
    data = scenario()
    time = data["metadata"]["ts"]
    data["metadata"]["ts"] = time + 0.5 * (time > 1.95)  # before step 20 of 25
    write(tmp_path / "val", data)
    reader = replace(READER, history_s=0.5, future_s=0.5, stride_s=0.5, scored="all")
    usable = []
    for item in reader.inputs(tmp_path, "val"):
        try:
            usable.append(reader.read(item, "val", tmp_path).scene_id[-3:])
        except SceneError as error:
            assert "metadata.ts: 0.1 to 0.6 s between steps" in str(error)
    assert usable == ["000", "005", "010"]


LISTS: dict[str, tuple[str, Damage, str]] = {
    "outside": (
        "mapping",
        entry(NAMES[0], value="../other"),
        "not a file in a folder inside .*: copy or link the folder there",
    ),
    "a path as name": (
        "mapping",
        entry("../x.pkl", value="part_0"),
        "not a file in a folder inside",
    ),
    "a zero byte": ("mapping", entry("a\0b.pkl", value="part_0"), "not a file in a folder inside"),
    "a list": (
        "mapping",
        change_bytes(lambda data: pickle.dumps([NAMES[0]], 4)),
        "expected a dict of file names and folders",
    ),
    "code": (
        "mapping",
        change_bytes(lambda data: b"cos\nsystem\n(S'touch evil'\ntR."),
        "opcode GLOBAL is not allowed",
    ),
    "no timestamps": (
        "summary",
        entry(NAMES[0], "ts", drop=True),
        r"sd_small_1.pkl\.ts: expected 2 to 10000 timestamps",
    ),
    "no summary": ("summary", Path.unlink, "No such file"),
    "another length": (
        "summary",
        entry(NAMES[0], "ts", change=lambda v: v[:20]),
        "length: 25 steps, dataset_summary.pkl has 20",
    ),
}


@pytest.mark.parametrize("case", LISTS)
def test_a_broken_list_is_refused_with_file_and_entry(tmp_path: Path, case: str) -> None:
    write(tmp_path / "raw" / "val", scenario())
    file, damage, reason = LISTS[case]
    damage(tmp_path / "raw" / "val" / f"dataset_{file}.pkl")
    outcomes = read_all(replace(READER, stride_s=1.0), tmp_path / "raw", "val").values()
    [message] = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert re.search(rf"\.pkl: .*{reason}", message), message


class TrustedUnpickler(pickle.Unpickler):
    """An independent reader: it imports the few classes that this file is known to use."""

    known = (
        "numpy.core.multiarray._reconstruct",
        "numpy.ndarray",
        "numpy.dtype",
        "collections.defaultdict",
        "builtins.int",
    )

    def find_class(self, module: str, name: str) -> Any:
        assert f"{module}.{name}" in self.known
        return super().find_class(module, name)


@pytest.fixture(scope="module")
def sample(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenarionet")
    shutil.unpack_archive(real_data / "scenarionet" / "nuscenes_mini.tar.xz", folder, filter="data")
    return folder / "nuscenes_7"


def test_the_real_sample_equals_a_walk_over_its_pickles(sample: Path) -> None:
    all_scenes = scenes(ScenarioNet(map_radius_m=1e6), sample, "scenarios")
    scene_of = {scene.scene_id: scene for scene in all_scenes}
    files = sorted(sample.glob("sd_*.pkl"))
    assert len(files) == 12
    assert scene_of.keys() == {path.stem for path in files}
    for path in files:
        with path.open("rb") as file:
            data = TrustedUnpickler(file).load()
        compare_tracks(scene_of[path.stem], data)
        compare_maps(scene_of[path.stem], data["map_features"])


def test_weights_of_another_reader_predict_the_sample(sample: Path, tmp_path: Path) -> None:
    """The commands of docs/results/nuscenes.md: keyframes become scenes of 4 + 12 steps at 2 Hz."""
    store = tmp_path / "store"
    slow = tmp_path / "slow"
    out = tmp_path / "forecasts.parquet"
    assert run("preprocess", "scenarionet", sample, store, "--workers", 1) == 0
    clock = ("--period-s", 0.5, "--num-history", 4, "--num-future", 12)
    assert run("store", "resample", store, slow, *clock) == 0
    pairs = zip(SceneStore(store, "scenarios"), SceneStore(slow, "scenarios"), strict=True)
    for before, after in pairs:
        assert np.array_equal(after.valid, before.valid[:, 5::5])
        assert np.array_equal(after.position, before.position[:, 5::5])
    model = ("--checkpoint", "pretrained:se2former_nuscenes")
    assert run("predict", *model, "--store", slow, "--split", "scenarios", "--out", out) == 0
    assert len(pd.read_parquet(out)) == 12 * 10


def compare_tracks(scene: Scene, data: dict[str, Any]) -> None:
    [target] = data["metadata"]["tracks_to_predict"]
    assert (scene.num_history, scene.num_future, scene.period_s) == (21, 60, 0.1)
    assert data["length"] == 81
    present = data["tracks"][target]["state"]["position"][20, :2]
    assert np.array_equal(scene.origin, np.round(present))
    assert scene.agent_id == tuple("AV" if name == "ego" else name for name in data["tracks"])
    for index, (name, one) in enumerate(data["tracks"].items()):
        state = one["state"]
        valid = state["valid"] == 1
        assert np.array_equal(scene.valid[index], valid)
        expected = (state["position"][:, :2] - scene.origin) * valid[:, None]
        assert np.abs(scene.position[index] - expected).max() < 1e-3
        turn = (scene.heading[index] - state["heading"])[valid]
        assert np.abs(np.exp(1j * turn) - 1).max() < 1e-5
        steps = valid[1:] & valid[:-1]
        velocity = np.diff(state["position"][:, :2], axis=0)[steps] / 0.1
        assert np.abs(scene.velocity[index, 1:][steps] - velocity).max(initial=0.0) < 1e-3
        kind = {"TRAFFIC_CONE": "CONSTRUCTION"}.get(one["type"], one["type"])
        assert AgentKind(scene.agent_kind[index]).name == kind
        assert scene.agent_role[index] == (AgentRole.FOCAL if name == target else AgentRole.CONTEXT)
        sizes = np.concatenate([state["length"], state["width"]], 1)[valid]
        if name == "ego":  # 1.73 m long and 4.08 m wide in the file
            sizes = sizes[:, ::-1]
        assert (np.abs(sizes - scene.agent_size[index]).max(1) < 1e-5).any()


KINDS_OF = {
    "LANE": (PolylineKind.LANE_VEHICLE, PolylineKind.LANE_BUS, PolylineKind.LANE_BIKE),
    "CROSSWALK": (PolylineKind.CROSSWALK,),
    "ROAD_EDGE": (PolylineKind.ROAD_EDGE,),
    "ROAD_LINE": (PolylineKind.ROAD_LINE,),
}


def compare_maps(scene: Scene, features: dict[str, Any]) -> None:
    names = list(features)
    assert scene.polyline_id.tolist() == list(range(len(names)))
    exits = set()
    for index, one in enumerate(features.values()):
        [kinds] = [kinds for prefix, kinds in KINDS_OF.items() if one["type"].startswith(prefix)]
        assert scene.polyline_kind[index] in kinds
        points = one["polyline"] if "polyline" in one else one["polygon"]  # closed in nuScenes
        expected = points[:, :2] - scene.origin
        assert np.abs(scene.polyline(index) - expected).max() < 1e-3
        for other in one.get("exit_lanes", []):
            if other in names:
                exits.add((index, names.index(other)))
    pairs = scene.edge[:, scene.edge_kind == EdgeKind.SUCCESSOR].T
    assert exits
    assert {*map(tuple, pairs.tolist())} == exits
