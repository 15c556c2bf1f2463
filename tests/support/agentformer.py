"""Small AgentFormers, scenes for them, and replaced random numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.scenes import hide, make_scene
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.models.agentformer.model import AgentFormer, AgentFormerConfig, RoadConfig
from trajformer.scenes.scene import Scene

BLOCK = BlockConfig(16, 2, 24, dropout=0.0, norm_first=False, agent_aware=True)
TINY = AgentFormerConfig(
    samples=4, latent=3, block=BLOCK, layers=(1, 1, 2), hidden=(8,), scale_m=2.0
)
ROAD = RoadConfig(60.0, 30, 8)
VARIANTS = {
    "plain": TINY,
    "road": replace(TINY, road=ROAD),
    "four-steps": replace(TINY, road=ROAD, steps_per_token=4, extrapolate=True),
    "road-last": replace(TINY, road=ROAD, origin="last"),
}


def pedestrians(position: np.ndarray, scene_id: str = "") -> Scene:
    """A scene without a map: 8 observed and 12 future steps of agents at float [A, 20, 2]."""
    count = len(position)
    scene = make_scene(count, 8, 12, with_map=False, num_scored=count - 1, scene_id=scene_id)
    return replace(scene, position=position.astype(np.float32)).validate()


def different_scenes() -> list[Scene]:
    """Scenes of three sizes.

    Agents appear late, are lost before the last observed step, or have an incomplete future.
    """
    first = hide(make_scene(7, 8, 6), 1, slice(6, 8))
    first = hide(first, 4, slice(7, 8))
    first = hide(first, 5, slice(0, 7))
    second = hide(make_scene(5, 8, 6, num_scored=2, seed=1), 1, slice(11, 14))
    return [first, second, make_scene(3, 8, 6, num_scored=0, seed=2)]


def random_model(config: AgentFormerConfig, seed: int = 0) -> AgentFormer:
    """A model in evaluation mode with larger initial weights, so that agents move."""
    torch.manual_seed(seed)
    model = AgentFormer(config)
    for layer in (model.decoder.out[-1], model.prior):
        torch.nn.init.normal_(layer.weight, std=0.2)
    return model.eval()


@contextmanager
def fixed_noise(noise: Tensor) -> Iterator[None]:
    """Within it, `torch.randn` returns the first entries of `noise` along each axis."""

    def first_entries(*shape: int, **_: object) -> Tensor:
        return noise[tuple(slice(size) for size in shape)].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", first_entries)
        yield
