"""Commands without a model propose included weights that fit the store; threads of forecasts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cli import run
from support.scenes import make_scene

from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard


def write(root: Path, scene: Scene, split: str = "val", **fields: Any) -> Path:
    """A store with one scene."""
    scene = replace(scene, split=split, **fields)
    info = ShardInfo(scene.source, split, unit=scene.unit)
    write_shard(shard_path(root, split, 0), [scene], info)
    return root


def scene_of(history: int, future: int, period_s: float, with_map: bool = True) -> Scene:
    """A scene with this clock."""
    scene = make_scene(4, num_history=history, num_future=future, with_map=with_map)
    return replace(scene, period_s=period_s)


CASES: dict[str, tuple[tuple[int, int, float], dict[str, Any], str, str]] = {
    "the data set": (
        (4, 12, 0.5),
        {"source": "nuscenes_prediction"},
        "val",
        "included weights fit: trajformer evaluate --checkpoint pretrained:se2former_nuscenes "
        "--store s --split val (also agentformer_nuscenes)",
    ),
    "own recordings": (
        (20, 30, 0.1),
        {"source": "table"},
        "val",
        "trajformer evaluate --checkpoint pretrained:se2former_argoverse1 --store s --split val",
    ),
    "no map": (
        (20, 30, 0.1),
        {"source": "table", "with_map": False},
        "val",
        "(trained with maps, which the first scene lacks; also se2former_argoverse1_fast)",
    ),
    "pixels": (
        (8, 12, 0.4),
        {"source": "table", "unit": "px", "with_map": False},
        "val",
        "--checkpoint pretrained:crowd_sdd --store s",
    ),
    "held-out set": (
        (8, 12, 0.4),
        {"source": "eth_ucy", "with_map": False},
        "zara1_test",
        "--checkpoint pretrained:crowd_eth_ucy/zara1 --store s --split zara1_test",
    ),
    "longer history": (
        (25, 30, 0.1),
        {},
        "val",
        "none of the included weights fits: s: split 'val': num_history 25, but "
        "pretrained:se2former_argoverse1 needs 20; ",
    ),
    "another unit": (
        (20, 30, 0.1),
        {"unit": "px"},
        "val",
        "none of the included weights fits: s: split 'val': ",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_evaluate_without_a_model_proposes_weights(case: str, fails: Callable[..., str]) -> None:
    clock, changes, split, expected = CASES[case]
    fields = dict(changes)
    with_map = fields.pop("with_map", True)
    write(Path("s"), scene_of(*clock, with_map), split, **fields)
    line = fails("evaluate", "--store", "s", "--split", split)
    assert expected in line, line
    assert "give --checkpoint or --model; " in line


def test_predict_and_plot_propose_the_same_weights(
    fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("a store"), scene_of(20, 30, 0.1))
    weights = "--checkpoint pretrained:se2former_argoverse1 --store 'a store' --split val"
    line = fails("predict", "--store", "a store", "--out", "my file")
    assert f"trajformer predict --out 'my file' {weights}" in line
    assert run("plot", "a store", "--out", "pictures") == 0
    hint = capsys.readouterr().err
    assert "drawn without --forecasts; included weights fit: trajformer predict --out" in hint
    assert weights in hint


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("--batch-size", 1), 1), (("--batch-size", 1, "--threads", 2), 2), ((), 2)],
)
def test_single_scenes_use_one_thread_unless_told_otherwise(
    fails: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[object, ...],
    expected: int,
) -> None:
    chosen = [2]
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    write(Path("s"), scene_of(20, 30, 0.1))
    assert run("evaluate", "--model", "constant_velocity", "--store", "s", *words) == 0
    assert chosen[-1] == expected
    assert "--threads 5: expected at most 4, one per core" in fails(
        "evaluate", "--model", "constant_velocity", "--store", "s", "--threads", 5
    )
