"""`trajformer train` under torchrun: two agents on this machine stand for two machines."""

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.processes import ROOT, environment
from support.training import recipe, training_store, weights

from trajformer.data.augment import AugmentConfig
from trajformer.errors import TrajformerError
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.training.forecasting import TASK
from trajformer.training.run import num_nodes, train

TRAJFORMER = "import sys; from trajformer.cli import main; sys.exit(main())"
WITHOUT_AUGMENTATION = AugmentConfig(flip=0.0, agent_dropout=0.0, history_mask=0.0, lost=0.0)


def settings(store: Path, epochs: int, batch_size: int) -> TrainConfig:
    """A recipe in which only the order of scenes is random."""
    config = recipe(
        store,
        trainer={"epochs": epochs},
        data={"batch_size": batch_size},
        augment=WITHOUT_AUGMENTATION,
    )
    block = replace(config.model.block, dropout=0.0)
    return replace(config, model=replace(config.model, block=block))


def train_on_two_nodes(config: TrainConfig, out: Path) -> None:
    """Two agents of torchrun, with one process each."""
    path = out.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(to_plain(config)))
    program = out.with_suffix(".py")
    program.write_text(TRAJFORMER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1"]
    launcher += ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=a"]
    words = [*launcher, program, "train", "--config", path, "--out", out]
    agents = []
    for _ in range(2):
        agent = subprocess.Popen(
            words,
            env=environment(PYTHONPATH=str(ROOT)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        agents.append(agent)
    outputs = [agent.communicate(timeout=300)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    lines = "".join(outputs)
    assert lines.count("epoch 1/1") == 1, lines  # only the first process prints
    assert "1 epochs of 2 steps" in lines


def assert_nearly_equal(first: Path, second: Path) -> None:
    """99 % of the weights agree to 1e-5; the largest step of a weight is 3e-3."""
    left, right = weights(first), weights(second)
    gaps = torch.cat([(left[name] - right[name]).abs().flatten() for name in left])
    assert gaps.quantile(0.99) < 1e-5


def test_two_nodes_train_as_one_and_one_process_continues(tmp_path: Path) -> None:
    """Steps of two processes with two scenes each are those of one process with four scenes.

    Gradients are added in another order, so weights differ by rounding. Adam amplifies this where
    the gradient is zero but for rounding, as for biases that a softmax ignores.
    """
    store = training_store(tmp_path / "store", 8, 3)
    both, single = tmp_path / "both", tmp_path / "single"
    train_on_two_nodes(settings(store, 1, 2), both)
    train(settings(store, 1, 4), TASK, single, progress=False)
    assert weights(both, key="global_step") == weights(single, key="global_step") == 2
    assert_nearly_equal(both, single)

    for out in (both, single):
        train(settings(store, 2, 4), TASK, out, resume=True, progress=False)
    assert weights(both, key="global_step") == 4
    assert_nearly_equal(both, single)


Variables = dict[str, int]


@pytest.mark.parametrize(
    ("devices", "variables", "nodes"),
    [
        (1, {}, 1),
        (1, {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}, 2),
        (4, {"RANK": 7, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4}, 2),
        (2, {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}, 1),
        (4, {"SLURM_PROCID": 5, "SLURM_NTASKS": 8, "SLURM_NNODES": 2}, 2),
        (1, {"SLURM_PROCID": 0, "SLURM_NTASKS": 1, "SLURM_NNODES": 1}, 1),
        (1, {"RANK": 1, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2}, None),
        (4, {"SLURM_PROCID": 1, "SLURM_NTASKS": 8, "SLURM_NNODES": 1}, None),
        (1, {"SLURM_PROCID": 3}, None),
    ],
)
def test_the_number_of_nodes_is_that_of_the_launcher(
    devices: int, variables: Variables, nodes: int | None, monkeypatch: Any
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    if nodes is None:
        with pytest.raises(TrajformerError, match="but no launcher of"):
            num_nodes(devices)
    else:
        assert num_nodes(devices) == nodes
