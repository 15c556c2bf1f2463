"""Attention of a scene for tests of the page."""

import numpy as np

from trajformer.data.sample import BatchConfig, sources
from trajformer.evaluation.attention import SceneAttention
from trajformer.scenes.scene import Scene

BATCH = BatchConfig(map_radius_m=30.0)


def random_attention(scene: Scene, num_targets: int = 2) -> SceneAttention:
    """Two layers of three heads with different attention to all agents and parts of the map."""
    rng = np.random.default_rng(0)
    origin = sources(scene, BATCH)
    count = len(origin.agent) + len(origin.polyline)
    shares = rng.exponential(size=(2, num_targets, 3, count)) ** 3
    shares /= shares.sum(-1, keepdims=True)
    return SceneAttention(("first", "last"), tuple(shares.astype(np.float32)), origin)
