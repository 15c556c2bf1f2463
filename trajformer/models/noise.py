"""Chance in evaluation that neither order nor batch mates change.

It is a function of names, which no graph can hold: a compiled model that evaluates with it has a graph before and one after.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from trajformer.data.batch import Observation


def named_noise(observation: Observation, agents: int, count: int, seed: int) -> Tensor:
    """Standard normal numbers, of each agent a function of the seed, its scene's name and its own.

    Args:
        agents: N, of the first so many agents.
        count: n, numbers of each.
        seed: of all.

    Returns:
        float32 [B, N, n] on the CPU, zero where there is no agent.
    """
    noise = np.zeros((observation.num_scenes, agents, count), np.float32)
    for b, names in enumerate(observation.agent_id):
        for a, name in enumerate(names[:agents]):
            text = repr((seed, observation.scene_id[b], name)).encode()
            key = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint64)
            noise[b, a] = np.random.Generator(np.random.Philox(key=key)).standard_normal(count)
    return torch.from_numpy(noise)
