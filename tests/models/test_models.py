"""The contract of all models, guarantees of some models beyond it, and joint variants."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import (
    FUTURE,
    GATFORMER,
    MMTRANSFORMER,
    MODEL_CONFIGS,
    WAYFORMER,
    shallow,
    shallow_config,
    training_cases,
)
from support.scenes import PERIOD_S, hide, make_scene, varied_scenes
from support.tensors import draw
from support.training import recipe, training_store
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig
from trajformer.errors import ConfigError, TrajformerError
from trajformer.evaluation.evaluate import evaluate
from trajformer.evaluation.metrics.displacement import displacement
from trajformer.losses.mixture import MixtureLossConfig
from trajformer.losses.world_loss import WorldLossConfig
from trajformer.models.agentformer.model import AgentFormerConfig
from trajformer.models.constant_velocity import ConstantVelocity, ConstantVelocityConfig
from trajformer.models.crowd import CrowdConfig
from trajformer.models.forecaster import Forecaster
from trajformer.models.modes import consensus
from trajformer.models.wayformer import LatentConfig
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.store import SceneStore
from trajformer.testing.models import CHECKS, LOSS_CHECKS, build_random, with_loss
from trajformer.testing.training_checks import (
    BFLOAT16_ROUNDING,
    check_bfloat16,
    check_device,
    check_float16,
)
from trajformer.training.forecasting import TASK
from trajformer.training.run import train


@pytest.fixture(scope="module")
def batch() -> SceneBatch:
    return collate(varied_scenes(), BatchConfig(polyline_points=4))


@cache
def small_model(name: str) -> Forecaster:
    """The model of `shallow_config`; the checks share it and change its mode and gradients."""
    return shallow(name)


# Precision and devices depend on the operators, which many configs of a model share. So they are
# checked for the configs of `training_cases`, and for these, whose operators differ. Devices are
# checked for these only, because `test_device.py` trains the others on the simulated accelerator.
OTHER_OPERATORS = {
    "constant-velocity",
    "constant-velocity-sampled",
    "mmtransformer-neighbor-map",
    "mmtransformer-appended",
    "se2former",
    "wayformer-early-multi_axis",
    "wayformer-late-sequential",
    "wayformer-late-interleaved-latents",
    "spatial-channel-feature",
    "agentformer",
    "agentformer-road",
    "scene-set-agents",
}


def contract_cases() -> list[Any]:
    """Each config of a model with its checks."""
    assert set(MODEL_CONFIGS) >= OTHER_OPERATORS
    trained = {name for name, _ in training_cases()}
    precise = OTHER_OPERATORS | trained
    cases = []
    for name in MODEL_CONFIGS:
        for check in CHECKS:
            if check in (check_bfloat16, check_float16) and name not in precise:
                continue
            if check is check_device and name not in OTHER_OPERATORS:
                continue
            cases.append(pytest.param(name, check, id=f"{name}-{check.__name__}"))
    return cases


@pytest.mark.parametrize(("name", "check"), contract_cases())
def test_contract(
    name: str, check: Callable[[nn.Module, SceneBatch], None], batch: SceneBatch
) -> None:
    model = small_model(name)
    model.zero_grad()
    if name.startswith("agentformer"):
        # it takes any horizon, and forecasts step by step or in tokens of 4 steps, one by one
        batch = batch.first_steps(8 if "tokens" in name else 4)
    check(model, batch)


def further_losses() -> list[tuple[str, Any]]:
    """Models with a loss that is not their default."""
    cases = []
    for name, loss in training_cases():
        if loss is not small_model(name).losses[0]:
            cases.append((name, loss))
    return cases


@pytest.mark.parametrize("check", LOSS_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("name", "loss"), further_losses())
def test_contract_of_further_losses(
    name: str, loss: Any, check: Callable[[nn.Module, SceneBatch], None], batch: SceneBatch
) -> None:
    check(with_loss(shallow(name), loss), batch)


@pytest.mark.parametrize(
    "change",
    [{"recorded": True}, {"recorded": True, "along_heading": True}],
    ids=["recorded", "heading"],
)
def test_a_lost_agent_moves_on_with_the_chosen_velocity(change: dict[str, bool]) -> None:
    observation = collate([varied_scenes()[0]]).observation
    o = replace(observation, velocity=torch.tensor([3.0, 4.0]).expand_as(observation.velocity))
    # Target 1 is seen until step 6 of 0 to 9.
    path = ConstantVelocityConfig(**change).build()(o).position[0, 1, 0]
    step = 0.1 * torch.tensor([3.0, 4.0])
    if "along_heading" in change:
        heading = o.pose[0, 1, 2]
        step = 0.1 * 5 * torch.stack([heading.cos(), heading.sin()])
    torch.testing.assert_close(path[0], o.position[0, 1, 6] + 4 * step, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["wayformer-early-multi_axis", "lane-set", "gatformer", "crowd"])
def test_evaluation_in_bfloat16_is_close_to_float32(name: str, batch: SceneBatch) -> None:
    """In training, the contract compares all models; other models may select other modes."""
    model = small_model(name).eval()
    exact = model(batch.observation)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(batch.observation)
    real = batch.observation.target_mask
    assert (exact.position - half.position)[real].abs().max() < BFLOAT16_ROUNDING
    assert (exact.logit - half.logit)[real].abs().max() < BFLOAT16_ROUNDING


MEMORIZED = (
    "mmtransformer",
    "wayformer-hierarchical-interleaved-latents",
    "spatial-channel-agent",
    "lane-set",
    "gatformer",
)


@pytest.mark.parametrize("name", (*MEMORIZED, "crowd"))
def test_two_scenes_are_memorized(name: str) -> None:
    torch.manual_seed(0)
    scenes = [make_scene(4, seed=seed) for seed in range(2)]
    model = shallow_config(name).build()
    batch = collate(scenes, BatchConfig(polyline_points=4, map_radius_m=20.0))
    loss_config = model.losses[0]()
    if MixtureLossConfig in model.losses:
        loss_config = MixtureLossConfig()
    loss = loss_config.build()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=80)
    for _ in range(80):
        optimizer.zero_grad()
        loss(model, batch)["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    values, counts = displacement(model.eval()(batch.observation), batch)
    assert counts.all() and values["minFDE6"].mean() < 0.3


@pytest.mark.parametrize(
    "name", ["mmtransformer", "wayformer-3-steps", "spatial-channel-agent", "gatformer"]
)
def test_a_longer_history_than_max_history_is_an_error(name: str) -> None:
    with pytest.raises(TrajformerError, match=r"11 observed steps, .*max_history 10"):
        shallow(name, max_history=10)(collate([make_scene(num_history=11)]).observation)


@pytest.mark.parametrize(
    ("config", "changes", "error"),
    [
        (MMTRANSFORMER, {"motion_layers": (1, 0)}, r"motion_layers: \(1, 0\)"),
        (WAYFORMER, {"decoder_layers": 0}, "decoder_layers: 0"),
        (LatentConfig(), {"counts": (0,)}, r"counts: 0"),
        (CrowdConfig(), {"time_layers": 0}, "time_layers: 0"),
        (AgentFormerConfig(), {"scale_m": 0}, "scale_m: 0"),
        (AgentFormerConfig(), {"layers": (1, 0, 1)}, r"layers: \(1, 0, 1\)"),
        (AgentFormerConfig(), {"layers": (1, 1, 0)}, r"layers: \(1, 1, 0\)"),
        (
            MMTRANSFORMER,
            {"proposals": 8, "regions": 3},
            "proposals: 8, expected a multiple of 3 regions",
        ),
        (
            MMTRANSFORMER,
            {"social_layers": None, "social_output": "appended"},
            "social_output: appended needs social_layers",
        ),
        (
            MMTRANSFORMER,
            {"proposals": 9, "joint": True},
            "joint: needs social_layers, modes equal to proposals",
        ),
    ],
)
def test_unsuitable_values_are_errors(config: Any, changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        replace(config, **changes)


SINGLE = {
    "mmtransformer": {"proposals": 1},
    "mmtransformer-joint": {"proposals": 1},
    "spatial-channel-agent": {},
}


@pytest.mark.parametrize("name", (*SINGLE, "lane-set", "gatformer"))
def test_a_single_mode_can_be_trained(name: str, batch: SceneBatch) -> None:
    model = shallow(name, modes=1, **SINGLE.get(name, {})).train()
    loss = model.losses[0]().build()(model, batch)["loss"]
    loss.backward()
    assert loss.isfinite()
    assert model.trajectory[0].weight.grad.abs().max() > 0
    forecast = model.eval()(batch.observation)
    assert forecast.position.shape[2] == 1
    assert torch.equal(forecast.probability(), torch.ones(3, 5, 1))


@pytest.mark.parametrize(
    "valid", [list(range(10)), [5, 9], [0, 6, 9], [2, 3, 8], [1, 9], [0, 2, 8], [9]], ids=str
)
def test_constant_velocity_extrapolates_a_line_and_stands_after_one_step(valid: list[int]) -> None:
    scene = make_scene(1, num_scored=0, with_map=False)
    time = (np.arange(22) - 9)[:, None] * PERIOD_S
    line = np.array([1.0, 2.0]) + time * np.array([3.0, -4.0])
    scene = replace(scene, position=line[None].astype(np.float32))
    for step in {*range(10)} - {*valid}:
        scene = hide(scene, 0, slice(step, step + 1))
    forecast = ConstantVelocity(ConstantVelocityConfig(modes=3))(collate([scene]).observation)
    expected = line[10:] if len(valid) > 1 else line[[9] * FUTURE]
    np.testing.assert_allclose(forecast.position[0, 0, 0], expected, atol=1e-5)
    assert forecast.logit[0, 0].argmax() == 0
    end: Tensor = forecast.position[0, 0, :, -1]
    assert len(valid) == 1 or (end[1:] - end[0]).norm(dim=-1).min() > 0.01


def test_constant_velocity_can_use_the_recorded_velocity() -> None:
    scene = make_scene(1, num_scored=0, with_map=False)
    observation = collate([hide(scene, 0, slice(0, 9))]).observation  # seen once
    forecast = ConstantVelocity(ConstantVelocityConfig(recorded=True))(observation)
    expected = scene.position[0, 9] + (FUTURE * PERIOD_S) * scene.velocity[0, 9]
    np.testing.assert_allclose(forecast.position[0, 0, 0, -1], expected, atol=1e-4)
    assert np.abs(scene.velocity[0, 9]).max() > 0.1


@pytest.mark.parametrize(
    "name", ["mmtransformer", "spatial-channel-agent", "lane-set", "gatformer"]
)
def test_consensus_scores_modes_in_evaluation_only(name: str, batch: SceneBatch) -> None:
    observation = batch.observation
    real = observation.target_mask
    with_consensus = build_random(replace(MODEL_CONFIGS[name], consensus_m=1.0))
    without = build_random(replace(MODEL_CONFIGS[name], consensus_m=0.0))
    scored = with_consensus.eval()(observation).logit[real]
    plain = without.eval()(observation)
    torch.testing.assert_close(scored, consensus(plain, 1.0).logit[real])
    assert not torch.allclose(scored, plain.logit[real])

    trained = with_consensus.train()(observation).logit[real]
    torch.testing.assert_close(trained, without.train()(observation).logit[real])


JOINT = replace(MMTRANSFORMER, joint=True, max_polylines=40)
ONLY_WORLD_2 = [False, False, True, False, False, False]


@torch.no_grad()
def test_proposals_of_mmtransformer_attend_to_their_world_only() -> None:
    model = build_random(JOINT).eval()
    observation = collate(varied_scenes()[2:]).observation
    proposals = draw(1, observation.agent_mask.shape[1], 6, JOINT.block.width)
    targets = proposals[:, : observation.num_targets]
    changed = proposals.clone()
    changed[:, 1:, 2] += 1.0  # world 2 of all other agents
    before = model.social(observation, proposals, targets, model.position)[0][0, 0]
    after = model.social(observation, changed, targets, model.position)[0][0, 0]
    assert ((before - after).abs().amax(-1) > 1e-5).tolist() == ONLY_WORLD_2


@torch.no_grad()
def test_targets_of_gatformer_attend_to_near_targets_of_their_world_only() -> None:
    model = build_random(replace(GATFORMER, joint=True)).eval()
    observation = collate(varied_scenes()[2:]).observation
    mode = draw(1, observation.num_targets, 6, GATFORMER.block.width)
    changed = mode.clone()
    changed[:, 1:, 2] += torch.linspace(-1.0, 1.0, GATFORMER.block.width)
    before = model.worlds(observation, mode)[0, 0]
    after = model.worlds(observation, changed)[0, 0]
    assert ((before - after).abs().amax(-1) > 1e-5).tolist() == ONLY_WORLD_2

    pose = observation.pose.clone()
    pose[0, :, 0] += 1e4 * torch.arange(pose.shape[1])
    far = replace(observation, pose=pose)
    assert torch.equal(model.worlds(far, mode)[0, 0], model.worlds(far, changed)[0, 0])


def test_a_joint_recipe_trains_and_is_evaluated_by_worlds(tmp_path: Path) -> None:
    store = training_store(tmp_path / "store", 4, 2)
    config = recipe(store, trainer={"epochs": 1}, loss=WorldLossConfig())
    config = replace(config, model=replace(config.model, joint=True))
    train(config, TASK, tmp_path / "run", progress=False)
    predictor = load_predictor(tmp_path / "run" / "last.ckpt", torch.device("cpu"))
    result = evaluate(predictor, SceneStore(tmp_path / "store", "val"), progress=False).metrics
    assert result["num_scenes"] == 2 and result["avgMinFDE6"] >= result["minFDE6"] > 0
