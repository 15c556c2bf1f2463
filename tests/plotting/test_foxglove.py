"""MCAP files, opened with the library's reader."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.pictures import fans
from support.scenes import make_scene

from trajformer.plotting.foxglove import SCHEMAS, write_mcap
from trajformer.scenes.scene import Scene

reader = pytest.importorskip("mcap.reader", reason="the package mcap is not installed")


def scene_named(name: str) -> Scene:
    scene = make_scene(num_agents=5, num_history=4, num_future=6, num_scored=1, scene_id=name)
    return replace(scene, origin=np.array([1000.25, -20.5]))


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, int, Any]]:
    """Topic, schema, time in nanoseconds and content of the messages of two scenes."""
    path = tmp_path_factory.mktemp("mcap") / "a.mcap"
    scenes = [scene_named("a"), scene_named("b")]
    assert write_mcap(path, [(scene, fans(scene)) for scene in scenes]) == 2
    found = []
    with path.open("rb") as file:
        opened = reader.make_reader(file)
        for schema, channel, message in opened.iter_messages():
            assert (schema.encoding, channel.message_encoding) == ("jsonschema", "json")
            assert json.loads(schema.data) == SCHEMAS[schema.name]
            content = json.loads(message.data)
            found.append((channel.topic, schema.name, message.log_time, content))
        [metadata] = opened.iter_metadata()
        assert metadata.metadata == {"a": "0.0", "b": "1.9"}
    return found


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """All required fields are present, in all objects, and no others."""
    if schema["type"] == "array":
        return all(fits(item, schema["items"]) for item in value)
    if schema["type"] == "object" and "properties" in schema:
        properties = schema["properties"]
        same = set(value) == set(properties)
        return same and all(fits(value[name], part) for name, part in properties.items())
    return True


def test_messages_fit_their_schemas(messages: list[tuple[str, str, int, Any]]) -> None:
    for topic, schema, _, content in messages:
        assert fits(content, SCHEMAS[schema]), topic


def test_boxes_are_the_recorded_states(messages: list[tuple[str, str, int, Any]]) -> None:
    scene = scene_named("a")
    updates = [message for message in messages if message[0] == "/agents"]
    assert len(updates) == 2 * scene.num_steps
    for step, (_, _, time_ns, content) in enumerate(updates[: scene.num_steps]):
        assert time_ns == pytest.approx(step * scene.period_s * 1e9)
        assert content["deletions"][0]["type"] == 1
        agents = np.flatnonzero(scene.valid[:, step])
        assert [entity["id"] for entity in content["entities"]] == [
            scene.agent_id[agent] for agent in agents
        ]
        for agent, entity in zip(agents, content["entities"], strict=True):
            pose = entity["cubes"][0]["pose"]
            position = [pose["position"]["x"], pose["position"]["y"]]
            assert position == pytest.approx(scene.position[agent, step].tolist())
            heading = 2 * np.arctan2(pose["orientation"]["z"], pose["orientation"]["w"])
            assert np.cos(heading - scene.heading[agent, step]) == pytest.approx(1.0)


def test_forecasts_appear_at_the_present(messages: list[tuple[str, str, int, Any]]) -> None:
    scene = scene_named("a")
    updates = [message for message in messages if message[0] == "/forecasts"]
    empty, (_, _, time_ns, content) = updates[0], updates[1]
    assert not empty[3]["entities"]
    assert time_ns == pytest.approx((scene.num_history - 1) * scene.period_s * 1e9)
    for forecast, entity in zip(fans(scene), content["entities"], strict=True):
        assert entity["id"] == forecast.track_id
        for path, line in zip(forecast.position, entity["lines"], strict=True):
            points = [(point["x"], point["y"]) for point in line["points"]]
            np.testing.assert_allclose(points, path - scene.origin, atol=1e-9)


def test_map_and_origin(messages: list[tuple[str, str, int, Any]]) -> None:
    scene = scene_named("a")
    transform = next(content for topic, _, _, content in messages if topic == "/tf")
    assert transform["translation"] == {"x": 1000.25, "y": -20.5, "z": 0.0}
    entities = next(content for topic, _, _, content in messages if topic == "/map")["entities"]
    assert sum(len(entity["lines"]) for entity in entities) == scene.num_polylines
