"""Parts of the commands that the command-line tests do not reach."""

from __future__ import annotations

from pathlib import Path

from scenes import make_scene

from trajformer.commands import _split_of
from trajformer.shard import ShardInfo, shard_path, write_shard


def test_plot_takes_the_split_that_the_forecasts_are_of(tmp_path: Path) -> None:
    """Argoverse 1 ids recur between splits: a scene in common is not enough."""
    for split, ids in {"test_obs": ("1", "2"), "val": ("1", "3", "4")}.items():
        scenes = [make_scene(3, seed=int(i), scene_id=i) for i in ids]
        write_shard(shard_path(tmp_path, split, 0), scenes, ShardInfo(source="test", split=split))
    assert _split_of(tmp_path, ["1", "3", "4"]) == "val"
    assert _split_of(tmp_path, ["1", "2"]) == "test_obs"
    assert _split_of(tmp_path, ["1"]) == "val"
