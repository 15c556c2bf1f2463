"""Forecasts, losses and gradients of recipes equal the values of an earlier version, with random weights of seed 0.

`tests/support/reference.json` has the values and the commit that produced them. Change it only together with an intended change
of a model, by running the same computation.
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
RELATIVE = 1e-4  # the order of sums differs between processors, and gradients add up over hundreds of tensors


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    """The first four training scenes of `trajformer synthesize --scenes 8 --seed 0`."""
    raw = tmp_path_factory.mktemp("raw")
    synthesize(raw, 8, 0, progress=False)
    reader = Argoverse2()
    return [reader.read(item, "train", raw) for item in reader.inputs(raw, "train")[:4]]


def without_dropout(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {
            k: 0.0 if k in ("dropout", "attention_dropout") else without_dropout(v)
            for k, v in plain.items()
        }
    return plain


@pytest.mark.parametrize("name", RECORD)
def test_a_recipe_gives_the_recorded_values(name: str, scenes: list[Scene]) -> None:
    plain = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    config = from_plain(TrainConfig, without_dropout(to_plain(from_plain(TrainConfig, plain))))
    batch, expected = collate(scenes, config.data.batch), RECORD[name]
    torch.manual_seed(0)
    model = config.build_model().eval()
    keys = "\n".join(
        f"{key} {tuple(value.shape)}" for key, value in sorted(model.state_dict().items())
    )
    assert hashlib.sha256(keys.encode()).hexdigest() == expected["state_dict"]
    assert sum(parameter.numel() for parameter in model.parameters()) == expected["parameters"]
    with torch.no_grad():
        forecast = model(batch.observation)
    mask = batch.observation.target_mask[:, :, None, None, None]
    assert float((forecast.position * mask).double().abs().sum()) == pytest.approx(
        expected["forecast"], rel=RELATIVE
    )
    model.train()
    loss = config.loss_config(model).build()(model, batch)["loss"]
    loss.backward()
    squares = [
        parameter.grad.double().square().sum()
        for parameter in model.parameters()
        if parameter.grad is not None
    ]
    assert loss.item() == pytest.approx(expected["loss"], rel=RELATIVE)
    assert float(torch.stack(squares).sum().sqrt()) == pytest.approx(
        expected["gradient_norm"], rel=10 * RELATIVE
    )
