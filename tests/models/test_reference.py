"""Forecasts, losses and gradients of recipes equal recorded values, with random weights of seed 0.

`tests/support/reference.json` has the values and the commit that produced them. Change it only
together with an intended change of a model, by running the same computation.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.synthetic import synthesize
from trajformer.data.batch import collate
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.scene import Scene

SUPPORT = Path(__file__).parents[1] / "support"
RECIPES = SUPPORT / "recipes"
RECORD = json.loads((SUPPORT / "reference.json").read_text())["recipes"]
# The order of sums differs between processors, and gradients add up over hundreds of tensors.
RELATIVE = 1e-4


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    """The first four training scenes of `trajformer synthesize --scenes 8 --seed 0`."""
    raw = tmp_path_factory.mktemp("raw")
    synthesize(raw, 8, 0, progress=False)
    reader = Argoverse2()
    return [reader.read(item, "train", raw) for item in reader.inputs(raw, "train")[:4]]


def without_dropout(plain: Any) -> Any:
    """Plain values of a recipe in which all dropout is zero."""
    if not isinstance(plain, dict):
        return plain
    changed = {}
    for name, value in plain.items():
        is_dropout = name in ("dropout", "attention_dropout")
        changed[name] = 0.0 if is_dropout else without_dropout(value)
    return changed


def digest_of_state(model: torch.nn.Module) -> str:
    """Digest of the names and shapes of all weights and buffers."""
    lines = []
    for name, value in sorted(model.state_dict().items()):
        lines.append(f"{name} {tuple(value.shape)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("name", RECORD)
def test_a_recipe_gives_the_recorded_values(name: str, scenes: list[Scene]) -> None:
    recipe = from_plain(TrainConfig, yaml.safe_load((RECIPES / f"{name}.yaml").read_text()))
    config = from_plain(TrainConfig, without_dropout(to_plain(recipe)))
    batch = collate(scenes, config.data.batch)
    expected = RECORD[name]
    torch.manual_seed(0)
    model = config.build_model().eval()
    assert digest_of_state(model) == expected["state_dict"]
    assert sum(parameter.numel() for parameter in model.parameters()) == expected["parameters"]

    with torch.no_grad():
        forecast = model(batch.observation)
    mask = batch.observation.target_mask[:, :, None, None, None]
    total = float((forecast.position * mask).double().abs().sum())
    assert total == pytest.approx(expected["forecast"], rel=RELATIVE)

    model.train()
    loss = config.loss_config(model).build()(model, batch)["loss"]
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], rel=RELATIVE)
    gradients = [p.grad.double() for p in model.parameters() if p.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    assert norm == pytest.approx(expected["gradient_norm"], rel=10 * RELATIVE)
