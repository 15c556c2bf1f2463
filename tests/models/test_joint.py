"""Joint variants of mmTransformer and Gatformer: mode k of all targets is one world."""

from dataclasses import replace
from pathlib import Path

import torch
from support.models import GATFORMER, MMTRANSFORMER
from support.scenes import varied_scenes
from support.tensors import draw
from support.training import recipe, training_store

from trajformer.data.batch import collate
from trajformer.evaluation.evaluate import evaluate
from trajformer.losses.set_loss import WorldLossConfig
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.store import SceneStore
from trajformer.testing.models import build_random
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

JOINT = replace(MMTRANSFORMER, joint=True, max_polylines=40)
ONLY_WORLD_2 = [False, False, True, False, False, False]


@torch.no_grad()
def test_proposals_of_mmtransformer_attend_to_their_world_only() -> None:
    model, observation = build_random(JOINT).eval(), collate(varied_scenes()[2:]).observation
    proposals = draw(1, observation.agent_mask.shape[1], 6, JOINT.block.width)
    targets, changed = proposals[:, : observation.num_targets], proposals.clone()
    changed[:, 1:, 2] += 1.0  # world 2 of all other agents
    before, after = (model.social(observation, x, targets, model.position)[0][0, 0] for x in (proposals, changed))
    assert ((before - after).abs().amax(-1) > 1e-5).tolist() == ONLY_WORLD_2


@torch.no_grad()
def test_targets_of_gatformer_attend_to_near_targets_of_their_world_only() -> None:
    model, observation = build_random(replace(GATFORMER, joint=True)).eval(), collate(varied_scenes()[2:]).observation
    mode = draw(1, observation.num_targets, 6, GATFORMER.block.width)
    changed = mode.clone()
    changed[:, 1:, 2] += torch.linspace(-1.0, 1.0, GATFORMER.block.width)
    before, after = (model.worlds(observation, x)[0, 0] for x in (mode, changed))
    assert ((before - after).abs().amax(-1) > 1e-5).tolist() == ONLY_WORLD_2
    distance = torch.tensor([1e4, 0.0, 0.0]) * torch.arange(observation.agent_mask.shape[1])[:, None]
    far = replace(observation, pose=observation.pose + distance)
    before, after = (model.worlds(far, x)[0, 0] for x in (mode, changed))
    assert torch.equal(before, after)


def test_a_joint_recipe_trains_and_is_evaluated_by_worlds(tmp_path: Path) -> None:
    config = recipe(training_store(tmp_path / "store", 4, 2), trainer={"epochs": 1}, loss=WorldLossConfig())
    train(replace(config, model=replace(config.model, joint=True)), TASK, tmp_path / "run", progress=False)
    predictor = load_predictor(tmp_path / "run" / "last.ckpt", torch.device("cpu"))
    result = evaluate(predictor, SceneStore(tmp_path / "store", "val"), progress=False).figures
    assert result["num_scenes"] == 2 and result["avgMinFDE6"] >= result["minFDE6"] > 0
