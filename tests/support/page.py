"""Reads the page of `trajformer view` as the browser does: data blocks, numbers and differences."""

import base64
import json
import re
import zlib
from typing import Any

import numpy as np

from trajformer.scenes.scene import AgentKind, AgentRole, PolylineKind, Scene


def block(html: str, name: str) -> bytes:
    """Content of a data block of a page."""
    pattern = f'<script type="application/octet-stream" id="{name}">([A-Za-z0-9+/=]*)</script>'
    (text,) = re.findall(pattern, html)
    return zlib.decompress(base64.b64decode(text))


def index_of(html: str) -> dict[str, Any]:
    """Settings and list of scenes of a page."""
    return json.loads(block(html, "index"))


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Header and streams of an encoded scene before compression."""
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length])
    position = 4 + length
    streams: dict[str, list[int]] = {}
    for name, count in header["streams"]:
        streams[name] = []
        for _ in range(count):
            value, position = _number(content, position)
            streams[name].append(value)
    assert position == len(content)
    return header, streams


def _number(content: bytes, position: int) -> tuple[int, int]:
    """A zigzag number and the position after it."""
    unsigned = 0
    shift = 0
    while True:
        byte = content[position]
        position += 1
        unsigned |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if unsigned % 2:
        return -(unsigned + 1) // 2, position
    return unsigned // 2, position


def summed(values: list[int], lengths: list[int], order: int) -> np.ndarray:
    """The numbers of which `differences` made these values."""
    parts = [np.zeros(0, np.int64)]
    start = 0
    for length in lengths:
        part = np.array(values[start : start + length], np.int64)
        if order == 2 and length > 1:
            part[1:] = np.cumsum(part[1:])
        parts.append(np.cumsum(part))
        start += length
    assert start == len(values)
    return np.concatenate(parts)


def crowded_scene(num_agents: int = 1000, num_lanes: int = 5000, num_scored: int = 100) -> Scene:
    """Many moving vehicles and lanes of ten points; the first agents are scored."""
    rng = np.random.default_rng(0)
    num_steps = 110
    heading = rng.uniform(-np.pi, np.pi, num_agents)
    direction = np.stack([np.cos(heading), np.sin(heading)], -1)
    start = rng.uniform(-150, 150, (num_agents, 1, 2))
    position = start + np.arange(num_steps)[:, None] * direction[:, None]
    role = np.zeros(num_agents, np.uint8)
    role[:num_scored] = AgentRole.SCORED
    center = rng.uniform(-200, 200, (num_lanes, 1, 2))
    angle = rng.uniform(-np.pi, np.pi, num_lanes)
    along = np.stack([np.cos(angle), np.sin(angle)], -1)[:, None]
    point = center + np.linspace(-10, 10, 10)[:, None] * along
    return Scene(
        scene_id="crowded",
        source="synthetic",
        split="val",
        city="",
        period_s=0.1,
        num_history=50,
        num_future=60,
        origin=np.zeros(2),
        agent_id=tuple(str(number) for number in range(num_agents)),
        agent_kind=np.full(num_agents, AgentKind.VEHICLE, np.uint8),
        agent_role=role,
        position=position.astype(np.float32),
        heading=np.repeat(heading[:, None], num_steps, 1).astype(np.float32),
        velocity=np.repeat(10 * direction[:, None], num_steps, 1).astype(np.float32),
        valid=np.ones((num_agents, num_steps), bool),
        polyline_id=np.arange(num_lanes),
        polyline_kind=np.full(num_lanes, PolylineKind.LANE_VEHICLE, np.uint8),
        polyline_flags=np.zeros(num_lanes, np.uint8),
        polyline_offset=(10 * np.arange(num_lanes + 1)).astype(np.int32),
        point=point.reshape(-1, 2).astype(np.float32),
        edge=np.zeros((2, 0), np.int32),
        edge_kind=np.zeros(0, np.uint8),
    ).validate()
