"""Random numbers for evaluation that do not depend on the order of scenes or agents, or on the batch.

They are a function of names, which `torch.compile` cannot trace: the graph of a compiled model breaks here.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from trajformer.data.batch import Observation


def named_noise(observation: Observation, agents: int, count: int, seed: int) -> Tensor:
    """Standard normal numbers that depend on the seed, the id of the scene and the id of the agent only.

    Args:
        observation: B scenes.
        agents: N, the number of agents, first ones first.
        count: n, numbers for each agent.
        seed: any integer.

    Returns:
        float32 [B, N, n] on the CPU, zero for padding.
    """
    noise = np.zeros((observation.num_scenes, agents, count), np.float32)
    for b, names in enumerate(observation.agent_id):
        for a, name in enumerate(names[:agents]):
            text = repr((seed, observation.scene_id[b], name)).encode()
            key = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint64)
            noise[b, a] = np.random.Generator(np.random.Philox(key=key)).standard_normal(count)
    return torch.from_numpy(noise)
