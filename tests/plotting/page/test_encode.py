"""Scenes of the page: decoded values equal the scene within the rounding, and sizes."""

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.attention import random_attention
from support.cli import run
from support.page import summed, unpack
from support.pictures import fan, fans
from support.scenes import make_scene

from trajformer.evaluation.forecast_file import TrackForecast, read_forecasts
from trajformer.plotting.forecasts import match_forecasts, track_errors
from trajformer.plotting.page.attention import MAX_OF_HEAD, MAX_OF_MEAN, SHARE_STEP
from trajformer.plotting.page.encode import encode_scene, is_joint
from trajformer.plotting.page.streams import MAX_VALUE, differences, quantize, to_bytes
from trajformer.scenes.scene import AgentKind, AgentRole, LightState, Scene
from trajformer.scenes.store import SceneStore

Header = dict[str, Any]
Streams = dict[str, list[int]]
HALF_STEP_M = 0.005 + 1e-6


def decoded(scene: Scene, *files: list[TrackForecast]) -> tuple[Header, Streams]:
    return unpack(zlib.decompress(encode_scene(scene, files).content))


def test_numbers_take_few_bytes_and_extremes_fit() -> None:
    assert to_bytes(np.array([0, -1, 1, 63, -64])) == bytes([0, 1, 2, 126, 127])
    assert to_bytes(np.array([64])) == bytes([0x80, 1])
    assert len(to_bytes(np.array([4 * MAX_VALUE - 1]))) == 5


@pytest.mark.parametrize("order", [1, 2])
def test_differences_are_reversible_in_groups_of_any_length(order: int) -> None:
    lengths = [3, 0, 1, 2, 5, 0]
    values = np.random.default_rng(0).integers(-1000, 1000, sum(lengths))
    packed = differences(values, np.array(lengths), order)
    np.testing.assert_array_equal(summed(packed.tolist(), lengths, order), values)


def test_a_constant_turn_has_small_numbers() -> None:
    values = 5 * np.arange(50) ** 2
    packed = differences(values, np.array([50]), 2)
    assert (packed[2:] == 10).all()


def test_values_without_a_meaning_are_limited() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e30])
    expected = [0, MAX_VALUE, -MAX_VALUE, MAX_VALUE]
    assert quantize(values, 0.01).tolist() == expected


def test_recorded_states_are_those_of_the_scene() -> None:
    scene = make_scene()
    header, streams = decoded(scene)
    bits = np.unpackbits(np.array(streams["valid"], np.uint8))[: scene.valid.size]
    np.testing.assert_array_equal(bits.reshape(scene.valid.shape), scene.valid)
    lengths = scene.valid.sum(1).tolist()
    for axis, name in enumerate("xy"):
        place = summed(streams[name], lengths, 2) * 0.01
        error = np.abs(place - scene.position[..., axis][scene.valid])
        assert error.max() <= HALF_STEP_M
    angle = summed(streams["heading"], lengths, 1) * 2 * np.pi / 1024
    turn = np.exp(1j * (angle - scene.heading[scene.valid]))
    assert np.abs(np.angle(turn)).max() <= np.pi / 1024 + 1e-6
    assert header["agentId"] == list(scene.agent_id)
    assert streams["kind"] == scene.agent_kind.tolist()


def test_the_map_is_that_of_the_scene() -> None:
    scene = make_scene()
    _, streams = decoded(scene)
    sizes = np.diff(scene.polyline_offset).tolist()
    assert streams["lineSize"] == sizes
    for axis, name in enumerate(("lineX", "lineY")):
        place = summed(streams[name], sizes, 2) * 0.01
        assert np.abs(place - scene.point[:, axis]).max() <= HALF_STEP_M


def test_traffic_lights_and_recorded_sizes_are_kept() -> None:
    scene = make_scene()
    states = np.full((1, scene.num_steps), LightState.RED, np.uint8)
    states[0, 20:] = LightState.GREEN
    sizes = np.full((scene.num_agents, 2), (5.25, 2.5), np.float32)
    lane = np.array([3], np.int32)
    scene = replace(scene, light_lane=lane, light_state=states, agent_size=sizes)
    header, streams = decoded(scene)
    assert header["sized"] is True
    assert set(streams["length"]) == {525}
    assert streams["lightLane"] == [3]
    lights = summed(streams["lightState"], [scene.num_steps], 1)
    np.testing.assert_array_equal(lights, states[0])


def test_forecasts_and_their_errors_are_kept() -> None:
    scene = make_scene()
    forecasts = fans(scene)
    header, streams = decoded(scene, [], forecasts)
    assert header["forecasts"][0]["agent"] == []
    matched = match_forecasts(scene, forecasts)
    entry = header["forecasts"][1]
    assert entry["agent"] == [forecast.agent for forecast in matched]
    lengths = [scene.num_future] * sum(entry["modes"])
    place = summed(streams["forecast1X"], lengths, 2) * 0.01
    expected = np.concatenate([one.position[..., 0].reshape(-1) for one in matched])
    assert np.abs(place - expected).max() <= HALF_STEP_M
    probability = np.concatenate([one.probability for one in matched])
    stored = np.array(streams["forecast1Probability"]) / 1e4
    np.testing.assert_allclose(stored, probability, atol=6e-5)
    errors = track_errors(scene, matched)
    np.testing.assert_allclose(entry["fde"], [fde for _, fde in errors], atol=6e-4)


def test_agents_without_a_recorded_end_have_no_error() -> None:
    scene = make_scene()
    observed = replace(
        scene,
        position=scene.position[:, : scene.num_history],
        heading=scene.heading[:, : scene.num_history],
        velocity=scene.velocity[:, : scene.num_history],
        valid=scene.valid[:, : scene.num_history],
    )
    encoded = encode_scene(observed, [fans(scene)])
    header, _ = unpack(zlib.decompress(encoded.content))
    assert set(header["forecasts"][0]["fde"]) == {None}
    assert encoded.summary["errors"] == [None]
    assert encoded.summary["manoeuvres"] == []


def test_the_list_has_the_error_of_the_main_agent() -> None:
    scene = make_scene()
    focal = int(np.flatnonzero(scene.agent_role == AgentRole.FOCAL)[0])
    forecasts = fans(scene)
    summary = encode_scene(scene, [forecasts]).summary
    (errors,) = track_errors(scene, match_forecasts(scene, [fan(scene, focal)]))
    assert summary["judged"] == [focal]
    assert summary["kinds"] == [AgentKind(scene.agent_kind[focal])]
    np.testing.assert_allclose(summary["errors"], [errors], atol=6e-4)


def test_the_largest_shares_of_attention_are_kept() -> None:
    scene = make_scene()
    attention = random_attention(scene)
    encoded = encode_scene(scene, [fans(scene)], attention)
    header, streams = unpack(zlib.decompress(encoded.content))
    names = [layer["name"] for layer in header["attention"]["layers"]]
    assert names == list(attention.layers)
    origin = attention.sources
    assert header["attention"]["target"] == origin.agent[:2].tolist()

    # agents and parts of polylines by the numbers of the page
    lines = summed(streams["attentionLine"], [len(streams["attentionLine"])], 1)
    parts = (lines.tolist(), streams["attentionPart"], streams["attentionParts"])
    page = [*range(scene.num_agents), *zip(*parts, strict=True)]
    sources = (origin.polyline.tolist(), origin.part.tolist(), origin.parts.tolist())
    model = [*origin.agent.tolist(), *zip(*sources, strict=True)]
    lengths = streams["attentionCount"]
    tokens = iter(summed(streams["attentionToken"], lengths, 1))
    values = iter(streams["attentionShare"])
    rows = iter(lengths)
    for target in range(2):
        for share in attention.shares:
            heads = share[target]
            for row, most in (
                (heads.mean(0), MAX_OF_MEAN),
                *[(head, MAX_OF_HEAD) for head in heads],
            ):
                assert row.sum() == pytest.approx(1.0)
                kept = {model.index(page[next(tokens)]): next(values) for _ in range(next(rows))}
                largest = np.argsort(-row)[:most]
                visible = row[largest] > 0.51 * SHARE_STEP
                assert kept.keys() >= set(largest[visible].tolist())
                assert len(kept) <= most
                for index, value in kept.items():
                    assert value * SHARE_STEP == pytest.approx(row[index], abs=0.51 * SHARE_STEP)
    assert next(rows, None) is None


def test_broken_values_are_left_out() -> None:
    scene = make_scene()
    scene.position[0, 4] = np.nan
    scene.point[0] = np.inf
    _, streams = decoded(scene)
    assert np.unpackbits(np.array(streams["valid"], np.uint8))[4] == 0
    assert streams["lineSize"][0] == 0


def test_joint_futures_have_the_same_probabilities() -> None:
    scene = make_scene()
    forecasts = match_forecasts(scene, fans(scene))
    assert is_joint(forecasts)
    other = forecasts[0]._replace(probability=forecasts[0].probability[::-1])
    assert not is_joint([*forecasts, other])
    tied = [one._replace(probability=np.full(6, 1 / 6)) for one in forecasts]
    assert not is_joint(tied)
    assert not is_joint(forecasts[:1])


def test_real_scenes_with_forecasts_are_small(real_data: Path, tmp_path: Path) -> None:
    raw = str(real_data / "argoverse2")
    store = str(tmp_path / "store")
    out = str(tmp_path / "forecasts.parquet")
    assert run("preprocess", "argoverse2", raw, store, "--split", "val", "--workers", "1") == 0
    model = ("--model", "constant_velocity_sampled")
    assert run("predict", *model, "--store", store, "--out", out) == 0
    forecasts = read_forecasts(out)
    scenes = SceneStore(store, "val")
    sizes = []
    for number in range(len(scenes)):
        scene = scenes[number]
        sizes.append(len(encode_scene(scene, [forecasts[scene.scene_id]]).content))
    # a third more in the page, because of base64
    assert np.mean(sizes) * 4 / 3 < 25_000
