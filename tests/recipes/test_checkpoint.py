"""Checkpoint files: damage is noticed, and models keep the properties of their scenes."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.models import CROWD

from trajformer.errors import CheckpointError, ConfigError, TrajformerError
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import CONFIG_KEY, describe, load_checkpoint, write_checkpoint
from trajformer.recipes.names import PRETRAINED, pretrained_names
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.spec import DataSpec

CHANGES = 150
TRAINED_ON = DataSpec("random", "train", "px", 0.4, 8, 12, False)
RECIPE = TrainConfig(CROWD)


@pytest.mark.parametrize("name", ["model.ckpt", "model.safetensors"])
def test_changed_bytes_never_change_a_model(tmp_path: Path, name: str) -> None:
    """Padding and dates of a zip file may change; the other format has a checksum of all bytes."""
    path, state = tmp_path / name, RECIPE.build_model().state_dict()
    write_checkpoint(path, RECIPE, state, TRAINED_ON)
    whole, rng, accepted = path.read_bytes(), random.Random(0), 0
    changes = [(rng.randrange(len(whole)), 1 << rng.randrange(8)) for _ in range(CHANGES)]
    for position, mask in [*((p, 1) for p in range(0, 1600, 16)), (0, 0), *changes]:
        content = bytearray(whole)
        content[position] ^= mask
        path.write_bytes(content)
        try:
            model, recipe = load_checkpoint(path)
        except CheckpointError:
            assert mask
            continue
        accepted += 1
        assert recipe == RECIPE and Predictor(model).trained_on == TRAINED_ON, position
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items()), (
            position
        )
    assert accepted == 1 or name == "model.ckpt"
    for size in (len(whole) - 1, len(whole) // 2, 8):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=name):
            load_checkpoint(path)


@pytest.mark.parametrize("entry", ["trained_on", "schema"])
def test_a_checkpoint_without_an_entry_of_its_head_is_refused(entry: str, tmp_path: Path) -> None:
    head = describe(RECIPE)
    del head[entry]
    file = tmp_path / "incomplete.safetensors"
    save_file(RECIPE.build_model().state_dict(), file, {CONFIG_KEY: json.dumps(head)})
    with pytest.raises(CheckpointError, match=entry):
        load_checkpoint(file)


@pytest.mark.parametrize("name", pretrained_names())
def test_included_weights_have_the_properties_of_their_training_scenes(name: str) -> None:
    model, recipe = load_checkpoint(f"{PRETRAINED}{name}")
    spec, roads = Predictor(model).trained_on, not name.startswith("crowd")
    clocks = {"argoverse1": (0.1, 20, 30), "simulated": (0.1, 50, 60), "nuscenes": (0.5, 4, 12)}
    clock = clocks[name.split("_")[1]] if roads else (0.4, 8, 12)
    assert (spec.period_s, spec.num_history, spec.num_future) == clock
    assert (spec.split, spec.unit, spec.has_map) == (
        recipe.data.train_split,
        "px" if name == "crowd_sdd" else "m",
        roads,
    )
    assert spec.num_future == getattr(recipe.model, "num_future", spec.num_future)


def test_properties_are_restored_and_checked() -> None:
    assert (
        DataSpec.from_plain(TRAINED_ON.to_plain()) == TRAINED_ON
        and DataSpec.from_plain({}) == DataSpec()
    )
    for plain in (["m"], {"speed": 3.0}, {"period_s": 1}, {"has_map": 0}, {"unit": 1}):
        with pytest.raises((TrajformerError, ConfigError)):
            DataSpec.from_plain(plain)
