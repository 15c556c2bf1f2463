"""Included weights on real scenes: inputs that change a forecast, and others that do not."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from data_prep.reader import Reader
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.readers.eth_ucy import EthUcy
from trajformer.data.batch import collate
from trajformer.data.sample import Targets
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import SHORT_LOSS_S, Scene

WEIGHTS = {"se2former_simulated": "argoverse2", "crowd_eth_ucy/hotel": "eth_ucy"}
READERS: dict[str, tuple[Reader, str]] = {
    "argoverse2": (Argoverse2(), "val"),
    "eth_ucy": (EthUcy(), "hotel_test"),
}
Modes = dict[tuple[str, str], torch.Tensor]  # scene and agent: positions [K, F, 2] in the scene


class Setting(NamedTuple):
    """Included weights and scenes that fit them."""

    predictor: Predictor
    scenes: list[Scene]


@pytest.fixture(scope="module", params=WEIGHTS)
def setting(request: pytest.FixtureRequest, real_data: Path) -> Setting:
    name = WEIGHTS[request.param]
    reader, split = READERS[name]
    raw = real_data / name
    items = list(reader.inputs(raw, split))
    every = max(len(items) // 4, 1)
    scenes = [reader.read(item, split, raw) for item in items[::every][:4]]
    return Setting(load_predictor(f"pretrained:{request.param}"), scenes)


@torch.no_grad()
def modes(predictor: Predictor, scenes: Sequence[Scene], targets: Targets) -> Modes:
    """The modes of all targets; a forecast is deterministic, so are the scenes of a batch."""
    result: Modes = {}
    batch = collate(scenes, replace(predictor.batch, targets=targets))
    position = predictor.model(batch.observation).in_batch_frame()
    for b, s in batch.observation.target_mask.nonzero().tolist():
        key = (batch.observation.scene_id[b], batch.observation.agent_id[b][s])
        result[key] = position[b, s]
    return result


def test_the_question_does_not_change_the_answer(
    setting: Setting,
) -> None:
    """An agent has the same forecast for any agents that are asked for, alone and in a batch."""
    predictor, scenes = setting
    everything = modes(predictor, scenes, "all")
    asked: list[Targets] = ["focal", "scored"]
    compared = 0
    for targets in asked:
        for part in (scenes, scenes[:1]):
            for key, value in modes(predictor, part, targets).items():
                torch.testing.assert_close(everything[key], value, atol=1e-4, rtol=1e-5)
                compared += 1
    assert compared >= 4


def test_roles_are_no_input(setting: Setting) -> None:
    predictor, scenes = setting
    expected = modes(predictor, scenes, "all")
    without = [replace(scene, agent_role=np.zeros_like(scene.agent_role)) for scene in scenes]
    for key, value in modes(predictor, without, "all").items():
        # the focal agent is the origin of a batch, so positions are rounded differently
        torch.testing.assert_close(value, expected[key], atol=3e-4, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_target_may_be_lost_in_its_last_steps(setting: Setting, steps: int) -> None:
    """The error grows by at most 1 m more than that of constant velocity."""
    predictor, scenes = setting
    compared = 0
    for scene in scenes:
        targets: Targets = "all" if _may_lose(scene, steps) else "scored"
        now = scene.num_history - 1
        for agent in _steady(scene)[:3]:
            valid = scene.valid.copy()
            valid[agent, now - steps + 1 : now + 1] = False
            hidden = replace(scene, valid=valid)
            for name in ("position", "heading", "velocity"):
                values = getattr(scene, name).copy()
                values[~valid] = 0
                hidden = replace(hidden, **{name: values})

            key = (scene.scene_id, scene.agent_id[agent])
            before = _end_error(modes(predictor, [scene], targets)[key], scene, agent)
            after = _end_error(modes(predictor, [hidden], targets)[key], scene, agent)
            lost = now - steps
            seen = scene.position[agent, lost]
            path = seen + scene.velocity[agent, lost] * steps * scene.period_s
            missed = float(np.hypot(*(path - scene.position[agent, now])))
            assert after <= before + missed + 1.0, f"{key}: {before:.2f} m, now {after:.2f} m"
            compared += 1
    assert compared >= 2


def _steady(scene: Scene) -> list[int]:
    """Agents with a complete track that keep velocity and heading in the last second."""
    now = scene.num_history - 1
    window = slice(max(now - round(1 / scene.period_s), 0), now + 1)
    velocity = scene.velocity[:, window]
    change = np.linalg.norm(velocity - velocity[:, -1:], axis=-1).max(1)
    turned = np.abs(wrap(scene.heading[:, window] - scene.heading[:, now, None])).max(1)
    is_complete = scene.valid.all(1)
    return np.flatnonzero(is_complete & (change < 0.5) & (turned < 0.2)).tolist()


def _may_lose(scene: Scene, steps: int) -> bool:
    """Whether an agent without its last steps is still in the scene."""
    return steps * scene.period_s <= SHORT_LOSS_S


def _end_error(modes: torch.Tensor, scene: Scene, agent: int) -> float:
    """Smallest distance in metres between the ends of the modes and the recorded end."""
    end = torch.from_numpy(scene.position[agent, -1])
    return float((modes[:, -1] - end).norm(dim=-1).min())
