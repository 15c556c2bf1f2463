"""A tiny recipe and stores for training, and the files that a run writes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from support.scenes import make_scene

from trajformer.core.blocks import BlockConfig
from trajformer.data.augment import AugmentConfig
from trajformer.data.sample import BatchConfig
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.recipes.recipe import DataConfig, OptimConfig, TrainConfig, TrainerConfig
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard


def training_store(root: Path, train: int, val: int) -> Path:
    """A store with scenes of four different sizes."""
    for split, seeds in (("train", range(train)), ("val", range(20, 20 + val))):
        scenes = [make_scene(4 + 3 * (seed % 4), seed=seed) for seed in seeds]
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    write_manifest(root)
    return root


def recipe(store: Path, **changes: Any) -> TrainConfig:
    """A tiny recipe with dropout and every augmentation.

    Parts such as `trainer` and `optim` take dicts of changes.
    """
    model = MMTransformerConfig(
        num_future=12,
        block=BlockConfig(width=16, heads=2, feedforward=16, dropout=0.2),
        motion_layers=(1, 1),
        map_layers=(1, 1),
        social_layers=(1, 2),
        map_width=8,
        max_polylines=6,
        max_neighbors=4,
    )
    augment = AugmentConfig(
        flip=0.5, rotate=1.0, agent_dropout=0.3, history_mask=0.5, history_mask_steps=4
    )
    data = DataConfig(str(store), str(store), batch_size=2, batch=BatchConfig(polyline_points=4))
    config = TrainConfig(
        model=model,
        data=data,
        augment=augment,
        optim=OptimConfig(learning_rate=3e-3),
        trainer=TrainerConfig(epochs=3, threads=1, log_every=1, accelerator="cpu"),
    )
    for name, value in changes.items():
        if isinstance(value, dict):
            changes[name] = replace(getattr(config, name), **value)
    return replace(config, **changes)


def weights(run: Path, name: str = "last", key: str = "state_dict") -> Any:
    """An entry of a checkpoint, by default the tensors by name."""
    return torch.load(run / f"{name}.ckpt", weights_only=True)[key]


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Largest absolute difference over all tensors of two state dicts."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def logged(run: Path) -> pd.DataFrame:
    return pd.read_csv(run / "csv" / "metrics.csv")


def log_of(run: Path, column: str = "val/minFDE6") -> pd.Series:
    """A logged column by step."""
    table = logged(run)
    return table[table[column].notna()].set_index("step")[column]
