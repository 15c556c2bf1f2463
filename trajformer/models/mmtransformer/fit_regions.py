"""The regions of mmTransformer's proposals, found in the training data before training starts."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from trajformer.data.sample import sample
from trajformer.models.mmtransformer.regions import equal_regions
from trajformer.recipes.recipe import DataConfig
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.store import SceneStore

_SCENES = 2048


def find_regions(data: DataConfig, count: int, seed: int) -> Tensor:
    """Equal-size regions [M, 3] of the end points of the targets of a random choice of training scenes.

    The same data, count and seed give the same regions, in every process and when a run goes on.

    Raises:
        TrajformerError: no such store, or there are fewer end points than regions.
    """
    store = SceneStore(data.train, data.train_split)
    scenes = len(store) if data.limit_train is None else min(data.limit_train, len(store))
    chosen = np.random.default_rng(seed).permutation(scenes)[:_SCENES]
    ends = [np.zeros((0, 2), np.float32)]
    for index in chosen.tolist():
        padded = sample(store[index], data.train_batch).padded
        known = padded["target_valid"][:, -1]
        pose = padded["pose"][: len(known)]
        ends.append(to_frame(padded["target"][:, -1], pose)[known])
    return equal_regions(np.concatenate(ends), count, seed)
