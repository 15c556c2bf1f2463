"""Live forecasts equal forecasts of scenes, for any order, ids, model and number of threads."""

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import seeded
from support.scenes import make_scene

from trajformer import OnlineForecaster, Scene, collate, load_model
from trajformer.cli.replay import Recording, recordings_of_logs, recordings_of_store
from trajformer.deploy.predicted import PredictedObjects
from trajformer.errors import SceneError
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import load_predictor
from trajformer.recipes.choices import MODELS
from trajformer.scenes.spec import DataSpec

WEIGHTS = "pretrained:se2former_argoverse1"
CLOCK = DataSpec(period_s=0.1, num_history=20, num_future=30)
TOLERANCE_M = 1e-4  # agents of a batch have another order, so sums are rounded in other ways


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return load_predictor(WEIGHTS, targets="all")


def table(steps: int = 24, agents: int = 6, seed: int = 0) -> pd.DataFrame:
    """Tracks on arcs; one appears late, one is lost, one returns, and one waits."""
    rng = np.random.default_rng(seed)
    rows = []
    for agent in range(agents):
        start = rng.uniform(-40, 40, 2)
        speed = 0.0 if agent == 3 else rng.uniform(1, 12)
        turn = rng.uniform(-0.3, 0.3)
        angle = rng.uniform(-3, 3)
        for step in range(steps):
            hidden = {0: step < 15, 1: step > 19, 2: 8 < step < 14}
            x, y = start
            if not hidden.get(agent, False):
                rows.append((f"track {agent}", 0.1 * step, x, y, ["car", "pedestrian"][agent % 2]))
            angle += 0.1 * turn
            start = start + 0.1 * speed * np.array([np.cos(angle), np.sin(angle)])
    return pd.DataFrame(rows, columns=["track_id", "timestamp", "x", "y", "kind"])


def lanes() -> list[np.ndarray]:
    x = np.linspace(-80, 80, 9)
    return [np.stack([x, np.full(9, y)], -1) for y in (-30.0, -3.5, 3.5, 30.0)]


def play(forecaster: OnlineForecaster, frame: pd.DataFrame) -> PredictedObjects:
    for time, rows in frame.groupby("timestamp"):
        forecaster.update(float(time), rows.drop(columns="timestamp"))
    return forecaster.forecast()


def batch_forecast(predictor: Predictor, scene: Scene) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Positions [K, F, 2] and falling probabilities [K] of each agent, from a batch."""
    observation = collate([scene], predictor.batch).observation
    with torch.inference_mode():
        forecast = predictor.model(observation)
    position = forecast.in_city_frame(observation)[0]
    probability = forecast.probability()[0].numpy()
    result = {}
    for row, name in enumerate(observation.agent_id[0][: observation.num_targets]):
        order = np.argsort(-probability[row], kind="stable")
        result[name] = (position[row][order], probability[row][order])
    return result


def assert_equals_batch(live: PredictedObjects, predictor: Predictor, scene: Scene) -> None:
    """Compare all agents."""
    expected = batch_forecast(predictor, scene)
    assert set(map(str, live.object_id)) == set(expected)
    errors = []
    for row, name in enumerate(live.object_id):
        position, probability = expected[str(name)]
        assert live.confidence[row] == pytest.approx(probability, abs=1e-3)
        errors.append(float(np.abs(live.position[row] - position).max()))
    assert max(errors) < TOLERANCE_M


def test_a_stream_equals_the_scene_of_its_tracks(predictor: Predictor) -> None:
    frame = table()
    forecaster = OnlineForecaster(WEIGHTS)
    forecaster.set_map(lanes())
    live = play(forecaster, frame)
    scene = Scene.from_tracks(frame, lanes(), num_history=20, num_future=30)
    assert "track 0" in scene.agent_id
    assert_equals_batch(live, predictor, scene)


def test_the_kept_map_does_not_change_forecasts(predictor: Predictor) -> None:
    frame = table(steps=40)
    forecaster = OnlineForecaster(WEIGHTS)
    forecaster.set_map(lanes())
    for time, rows in frame.groupby("timestamp"):
        forecaster.update(float(time), rows.drop(columns="timestamp"))
        live = forecaster.forecast()
        scene = Scene.from_tracks(frame, lanes(), float(time), num_history=20, num_future=30)
        if scene.valid[:, -10:].any(1).all() and float(time) > 2.0:
            assert_equals_batch(live, predictor, scene)


def test_utm_coordinates_lose_no_precision() -> None:
    results = []
    for shift in (np.zeros(2), np.array([1e7, -1e7])):
        frame = table()
        frame[["x", "y"]] += shift
        forecaster = OnlineForecaster(WEIGHTS)
        forecaster.set_map([line + shift for line in lanes()])
        results.append(play(forecaster, frame).position - shift)
    assert np.abs(results[0] - results[1]).max() < TOLERANCE_M


@settings(max_examples=5)
@given(order=st.permutations(range(6)), names=st.permutations(range(100, 106)))
def test_order_and_ids_of_tracks_have_no_effect(order: list[int], names: list[int]) -> None:
    frame = table(steps=8)
    expected = play(OnlineForecaster("constant_velocity", clock=CLOCK), frame)
    new_name: dict[str, Any] = {}
    for old, name in enumerate(names):
        new_name[f"track {old}"] = (name, "id")
    changed = frame.assign(position=frame.track_id.str[-1].astype(int).map(order.index))
    changed = changed.sort_values(["timestamp", "position"]).drop(columns="position")
    changed["track_id"] = changed.track_id.map(new_name)
    live = play(OnlineForecaster("constant_velocity", clock=CLOCK), changed)
    for row, name in enumerate(expected.object_id):
        other = live.object_id.index(new_name[name])
        assert np.abs(live.position[other] - expected.position[row]).max() < TOLERANCE_M


@pytest.mark.parametrize("name", [name for name in MODELS if name != "agentformer_sampler"])
def test_every_model_forecasts_live_tracks(name: str) -> None:
    num_future = 12
    clock = DataSpec(period_s=0.1, num_history=8, num_future=num_future)
    forecaster = OnlineForecaster(seeded(MODELS[name].example(num_future)), clock=clock)
    forecaster.set_map(lanes())
    live = play(forecaster, table())
    assert len(live) == 6
    assert live.position.shape[2:] == (num_future, 2)
    assert live.confidence.sum(1) == pytest.approx(1.0, abs=1e-5)
    record = live.objects[0]
    assert record.predicted_paths[0].path.shape == (num_future, 3)
    assert record.object_id == live.object_id[0]


def test_reading_while_updates_arrive() -> None:
    forecaster = OnlineForecaster("constant_velocity", clock=CLOCK)
    frame = table(steps=60)
    moments = [
        (float(time), rows.drop(columns="timestamp")) for time, rows in frame.groupby("timestamp")
    ]
    forecaster.update(*moments[0])
    times: list[float] = []
    problems: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                times.append(forecaster.forecast().timestamp_s)
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for moment in moments[1:]:
        forecaster.update(*moment)
    done.set()
    for reader in readers:
        reader.join()
    assert not problems
    assert forecaster.forecast().timestamp_s == moments[-1][0]


def test_one_line_for_a_model_without_a_clock() -> None:
    with pytest.raises(Exception, match="clock: period_s is unknown"):
        OnlineForecaster("constant_velocity")
    assert load_model(WEIGHTS).training is False


# ---- real recordings -----------------------------------------------------------------------------


def replayed(forecaster: OnlineForecaster, recording: Recording, last: int) -> PredictedObjects:
    forecaster.reset()
    forecaster.set_map(recording.lanes)
    first = max(0, last - 60)
    for step in range(first, last + 1):
        forecaster.update(recording.period_s * step, recording.tracks(step))
    return forecaster.forecast()


def test_real_sensor_logs(real_data: Path, predictor: Predictor) -> None:
    from data_prep.readers.argoverse2.sensor import Argoverse2Sensor

    raw = real_data / "argoverse2_sensor"
    reader = Argoverse2Sensor(history_s=2.0, future_s=3.0, stride_s=6.0, map_radius_m=1e5)
    forecaster = OnlineForecaster(WEIGHTS)
    recordings = {recording.name: recording for recording in recordings_of_logs(raw)}
    count = 0
    for split in reader.splits(raw):
        for item in reader.inputs(raw, split)[:3]:
            scene = reader.read(item, split, raw)
            recording = recordings[item.path.parent.name]
            live = replayed(forecaster, recording, int(item.part) + 19)
            assert_equals_batch(live, predictor, scene)
            count += 1
    assert count >= 3


def test_real_scenes_of_argoverse_1(unpack: Any, predictor: Predictor, tmp_path: Path) -> None:
    from data_prep.readers.argoverse1 import Argoverse1

    raw = unpack("argoverse1", "--split", "test_obs", "--limit", "6")
    reader = Argoverse1()
    split = reader.splits(raw)[0]
    forecaster = OnlineForecaster(WEIGHTS)
    for item in reader.inputs(raw, split)[:6]:
        scene = reader.read(item, split, raw)

        class One:
            def __len__(self) -> int:
                return 1

            def __getitem__(self, index: int, scene: Scene = scene) -> Scene:
                return scene

        [recording] = recordings_of_store(One())  # type: ignore[arg-type]
        live = replayed(forecaster, recording, 19)
        assert_equals_batch(live, predictor, scene)


def test_a_scene_is_its_own_map() -> None:
    scene = make_scene(4)
    forecaster = OnlineForecaster("constant_velocity", clock=CLOCK)
    forecaster.set_map(replace(scene))
    x, y = scene.position[0, 0] + scene.origin
    forecaster.update(0.0, {"object_id": ["a"], "x": [x], "y": [y]})
    assert forecaster.observation().heading.shape == (1, 1, 20)
    assert forecaster.observation().polyline.shape[1] > 0


def test_the_example_of_the_guide_runs() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    block = guide.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(block, "deploy.md", "exec"), names)
    forecasts = names["forecasts"]
    assert forecasts.object_id == ("car", 7)
    car = forecasts.position[0, 0, -1]
    assert car[0] > 0.8 * 19 + 15  # 8 m/s for 3 s


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"heading": [90.0]}, "tracks: heading: more than 40 degrees from the direction of motion"),
        ({"vx": [-8.0], "vy": [0.0]}, "tracks: vx, vy: .*reversed"),
        ({"heading": [0.05], "vx": [8.1], "vy": [0.1]}, ""),
        ({}, ""),
    ],
)
def test_values_that_do_not_fit_each_other_are_a_warning(
    columns: dict[str, list[float]], line: str, recwarn: pytest.WarningsRecorder
) -> None:
    forecaster = OnlineForecaster("constant_velocity", clock=CLOCK)
    for step in range(CLOCK.num_history or 0):
        tracks = {"object_id": ["a"], "x": [0.8 * step], "y": [0.0]}
        forecaster.update(0.1 * step, tracks | columns)
    forecaster.forecast()
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == bool(line)
    assert all(re.match(line, message) for message in messages)


def test_times_that_are_no_seconds_are_refused() -> None:
    forecaster = OnlineForecaster("constant_velocity", clock=CLOCK)
    with pytest.raises(SceneError, match=r"timestamp_s: 1\.7e\+18, expected seconds"):
        forecaster.update(1.7e18, {"object_id": ["a"], "x": [0.0], "y": [0.0]})
