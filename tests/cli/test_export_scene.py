"""Exported scenes: JSON and npz hold the same scene; `trajformer store export-scene`."""

import json
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.stores import CLOCK, fingerprint, make_store, random_scene, same_bits

from trajformer.errors import SceneError
from trajformer.scenes.export import export_scene, scene_to_arrays, scene_to_json
from trajformer.scenes.scene import (
    AgentKind,
    AgentRole,
    EdgeKind,
    LaneFlag,
    LightState,
    PolylineKind,
    Scene,
)

Run = Callable[..., tuple[int, str, str]]
Fails = Callable[..., str]


def column(entries: list[dict[str, Any]], name: str, dtype: type) -> np.ndarray:
    return np.array([entry[name] for entry in entries], dtype)


def kinds(entries: list[dict[str, Any]], name: str, enum: type[IntEnum]) -> np.ndarray:
    """Numbers of an enum, from its names."""
    return np.array([enum[entry[name]] for entry in entries], np.uint8)


def flags(polylines: list[dict[str, Any]]) -> np.ndarray:
    values = []
    for polyline in polylines:
        values.append(sum(LaneFlag[flag] for flag in polyline["flags"]))
    return np.array(values, np.uint8)


def states(lights: list[dict[str, Any]]) -> np.ndarray:
    """States uint8 [N, T] of lights."""
    if not lights:
        return np.zeros((0, 0), np.uint8)
    rows = []
    for light in lights:
        rows.append([LightState[state] for state in light["states"]])
    return np.array(rows, np.uint8)


def from_json(path: Path) -> Scene:
    """A scene read from its JSON as the help describes it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    values = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    agents = values.pop("agents")
    polylines = values.pop("polylines")
    edges = values.pop("edges")
    lights = values.pop("lights")
    values["origin"] = np.array(values["origin"])
    steps = len(agents[0]["valid"])
    points: list[Any] = []
    offset = [0]
    for polyline in polylines:
        points += polyline["points"]
        offset.append(len(points))
    with_size = [agent for agent in agents if "size" in agent]
    ends = [column(edges, "from", np.int32), column(edges, "to", np.int32)]
    return Scene(
        **values,
        agent_id=tuple(agent["id"] for agent in agents),
        agent_kind=kinds(agents, "kind", AgentKind),
        agent_role=kinds(agents, "role", AgentRole),
        position=column(agents, "position", np.float32).reshape(-1, steps, 2),
        heading=column(agents, "heading", np.float32),
        velocity=column(agents, "velocity", np.float32).reshape(-1, steps, 2),
        valid=column(agents, "valid", np.bool_),
        polyline_id=column(polylines, "id", np.int64),
        polyline_kind=kinds(polylines, "kind", PolylineKind),
        polyline_flags=flags(polylines),
        polyline_offset=np.array(offset, np.int32),
        point=np.array(points, np.float32).reshape(-1, 2),
        edge=np.stack(ends),
        edge_kind=kinds(edges, "kind", EdgeKind),
        agent_size=column(with_size, "size", np.float32).reshape(-1, 2),
        light_lane=column(lights, "lane", np.int32),
        light_state=states(lights),
    )


def from_npz(path: Path) -> Scene:
    with np.load(path, allow_pickle=False) as file:
        values: dict[str, Any] = dict(file)
    for name, value in values.items():
        if value.ndim == 0:
            values[name] = value.item()
    values["agent_id"] = tuple(values["agent_id"].tolist())
    return Scene(**values)


@pytest.mark.parametrize("seed", range(12))
def test_an_exported_scene_is_the_same_scene(tmp_path: Path, seed: int) -> None:
    agents = 1 + seed % 4
    names: dict[str, Any] = {}
    if seed % 2:
        names["agent_id"] = ("Zoë “7”\\", "車", " ", "a b")[:agents]
        names["city"] = "São Paulo"
    with_future = bool(seed % 3)
    scene = random_scene(seed, agents, seed % 6, with_future, odd=bool(seed % 5), **names)
    for name in ("scene.json", "scene.npz"):
        export_scene(scene, tmp_path / name)
    assert same_bits(from_json(tmp_path / "scene.json"), scene)
    assert fingerprint(from_npz(tmp_path / "scene.npz")) == fingerprint(scene)


def test_invalid_scenes_are_not_exported(tmp_path: Path) -> None:
    scene = random_scene(0)
    values: dict[str, Any] = {name: getattr(scene, name) for name in scene_to_arrays(scene)}
    values["position"] = scene.position * np.nan
    broken = Scene(**values)
    with pytest.raises(SceneError, match="scene-0: position"):
        export_scene(broken, tmp_path / "scene.json")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="JSON compliant"):
        scene_to_json(broken)


@pytest.fixture
def export(run: Run) -> tuple[str, ...]:
    """First words of a command; the store has scenes 0 to 3 in train and scene 3 in val."""
    make_store(Path("s"), (2, 2))
    make_store(Path("s"), (1,), "val", first=3)
    return ("export-scene", "s", "--scene")


def test_export_scene_finds_the_scene(run: Run, export: tuple[str, ...]) -> None:
    code, text, _ = run(*export, "scene-2", "--out", "new/scene.json")
    assert code == 0
    assert text == "new/scene.json: scene scene-2 of train, 3 agents, 2 polylines\n"
    assert same_bits(from_json(Path("new/scene.json")), random_scene(2, **CLOCK))


def test_a_scene_of_two_splits_needs_the_split(
    run: Run, error_of: Fails, export: tuple[str, ...]
) -> None:
    words = (*export, "scene-3", "--out", "scene.npz")
    message = "s: scene scene-3 is in train and in val; choose with --split"
    assert message in error_of(*words)
    assert run(*words, "--split", "val")[0] == 0
    assert from_npz(Path("scene.npz")).split == "val"


def test_wrong_exports_are_refused(error_of: Fails, export: tuple[str, ...]) -> None:
    assert "s: no scene nine in train, val" in error_of(*export, "nine", "--out", "a.json")
    words = (*export, "scene-3", "--out", "a.json", "--split", "moon")
    assert "no split 'moon'" in error_of(*words)
    message = "a.xyz: must end in .json or .npz"
    assert message in error_of(*export, "scene-1", "--out", "a.xyz")
