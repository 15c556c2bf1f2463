"""Stores of random scenes and bitwise comparison of scenes.

Child processes import this module, so it imports little.
"""

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from trajformer.scenes.manifest import verify_store, write_manifest
from trajformer.scenes.scene import (
    MAX_EXTENT_M,
    MAX_SPEED_M_S,
    AgentRole,
    LightState,
    PolylineKind,
    Scene,
)
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore


def extremes(largest: float) -> np.ndarray:
    """Float32 numbers up to `largest` that an inexact conversion changes.

    Signed zeros, denormals and long fractions are among them.
    """
    info = np.finfo(np.float32)
    denormals = [info.smallest_subnormal, 3 * info.smallest_subnormal]
    fractions = [0.1, 1 / 3, 1.0, np.pi]
    values = [0.0, *denormals, info.tiny, info.eps, *fractions, largest]
    values = np.minimum(np.array(values, np.float32), np.float32(largest))
    return np.concatenate([values, -values])


def random_scene(
    seed: int, agents: int = 3, lanes: int = 2, future: bool = True, **more: Any
) -> Scene:
    """A valid random scene.

    `more` sets fields of the scene, and: `history` and `horizon`, numbers of steps; `points`,
    number of map points; `edges`, number of edges; `odd`, whether numbers are extreme; `optional`,
    whether agents have sizes and lanes have lights.
    """
    rng = np.random.default_rng(seed)
    history = int(rng.integers(2, 6))
    horizon = int(rng.integers(1, 7))
    history = more.pop("history", history)
    horizon = more.pop("horizon", horizon)
    steps = history + horizon if future else history
    valid = rng.random((agents, steps)) < 0.6
    valid[0, 0] = True

    length = rng.integers(2, 5, lanes)
    points = more.pop("points", None)
    if points is not None:
        length = np.full(lanes, 2)
        length[-1] = points - 2 * (lanes - 1)
    edges = int(rng.integers(0, 5)) if lanes else 0
    edges = more.pop("edges", edges)
    state = rng.normal(0, 30, (agents, steps, 5)).astype(np.float32)
    point = rng.normal(0, 50, (int(length.sum()), 2)).astype(np.float32)
    state[..., 2] = np.sin(state[..., 2])
    if more.pop("odd", False):
        pi = float(np.float32(np.pi))
        state[..., :2] = rng.choice(extremes(MAX_EXTENT_M), (agents, steps, 2))
        state[..., 2] = rng.choice(extremes(pi), (agents, steps))
        state[..., 3:] = rng.choice(extremes(MAX_SPEED_M_S), (agents, steps, 2))
        point[:] = rng.choice(extremes(MAX_EXTENT_M), point.shape)
    state[~valid] = 0.0

    names = [str(number) for number in range(agents)]
    if agents > 1:
        names[1] = "AV 1"
    period_s = float(rng.choice([0.1, 0.4]))
    origin = rng.normal(0, 1e4, 2)
    agent_kind = rng.integers(0, 10, agents)
    agent_role = rng.permutation([int(AgentRole.FOCAL), *rng.integers(0, 2, agents - 1)])
    first_id = [-(2**63), -lanes // 2, 2**63 - 1 - lanes]
    polyline_id = rng.permutation(lanes) + rng.choice(first_id)
    values = {
        "scene_id": f"scene-{seed}",
        "source": "random",
        "split": "train",
        "city": "Zürich",
        "period_s": period_s,
        "num_history": history,
        "num_future": horizon,
        "origin": origin,
        "agent_id": tuple(names),
        "agent_kind": agent_kind.astype(np.uint8),
        "agent_role": agent_role.astype(np.uint8),
        "valid": valid,
        "position": state[..., :2].copy(),
        "heading": state[..., 2].copy(),
        "velocity": state[..., 3:].copy(),
        "polyline_id": polyline_id,
        "polyline_kind": rng.integers(0, len(PolylineKind), lanes).astype(np.uint8),
        "polyline_flags": rng.integers(0, 16, lanes).astype(np.uint8),
        "polyline_offset": np.concatenate([[0], np.cumsum(length)]).astype(np.int32),
        "point": point,
        "edge": rng.integers(0, max(lanes, 1), (2, edges)).astype(np.int32),
        "edge_kind": rng.integers(0, 4, edges).astype(np.uint8),
    }
    if lanes and more.pop("optional", seed % 3 == 1):
        lights = rng.integers(1, 4)
        values["agent_size"] = rng.uniform(0, 20, (agents, 2)).astype(np.float32)
        values["light_lane"] = rng.integers(0, lanes, lights).astype(np.int32)
        values["light_state"] = rng.integers(0, len(LightState), (lights, steps)).astype(np.uint8)
    return Scene(**values | more).validate()


def same_bits(left: Scene, right: Scene) -> bool:
    """True if all fields have the same type, shape and bytes.

    In contrast to `scenes_equal`, -0.0 differs from 0.0.
    """
    return fingerprint(left) == fingerprint(right)


def fingerprint(scene: Scene) -> str:
    """A digest of the type, shape and bytes of each field."""
    digest = hashlib.sha256()
    for field in fields(Scene):
        value = getattr(scene, field.name)
        if isinstance(value, np.ndarray):
            digest.update(f"{field.name} {value.dtype} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        else:
            digest.update(f"{field.name} {value!r}".encode())
    return digest.hexdigest()


CLOCK: dict[str, Any] = {"period_s": 0.1, "history": 4, "horizon": 3}


def make_store(
    root: Path,
    counts: tuple[int, ...] = (3, 2),
    split: str = "train",
    first: int = 0,
    clock: dict[str, Any] = CLOCK,
) -> list[Scene]:
    """A store with one split: `counts` scenes per shard, scene numbers from `first`, a manifest.

    An empty `clock` is random.
    """
    scenes = [random_scene(first + number, split=split, **clock) for number in range(sum(counts))]
    ends = np.cumsum(counts).tolist()
    for index, (end, count) in enumerate(zip(ends, counts, strict=True)):
        info = ShardInfo("random", split, f"digest {index}", ((f"bad-{index}", "a reason"),))
        write_shard(shard_path(root, split, index), scenes[end - count : end], info)
    write_manifest(root)
    return scenes


def write_elsewhere(root: Path) -> list[str]:
    """For a child process: write a store and return the fingerprints of its scenes."""
    return [fingerprint(scene) for scene in make_store(root)]


def read_elsewhere(store: SceneStore) -> list[str]:
    """For a child process: the fingerprints of all scenes of an unpickled store."""
    return [fingerprint(scene) for scene in store]


def problems(root: Path) -> list[str]:
    return verify_store(root, lambda paths, total: paths)
