"""The ETH/UCY protocol: forecasts do not depend on the future; which windows and modes count."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.eth_scenes import H, Tracks, outcomes, read_set, walkers, write, write_scenes
from torch import Tensor, nn

from trajformer.data.batch import Observation, SceneBatch, Truth
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.protocols import eth_ucy as protocol
from trajformer.models.constant_velocity import (
    ConstantVelocity,
    SampledConstantVelocityConfig,
)
from trajformer.scenes.spec import DataSpec

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
Predictions = dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_scenes(tmp_path / "raw", monkeypatch)


class Spy(nn.Module):
    """Constant velocity plus an offset that depends on every value of the observation."""

    def forward(self, batch: Observation) -> Forecast:
        forecast = ConstantVelocity()(batch)
        offset = torch.tensor([len(agents) for agents in batch.agent_id])
        offset = offset + 10 * batch.target_mask.sum(1)
        for field in fields(batch):
            value = getattr(batch, field.name)
            if isinstance(value, Tensor):
                offset = offset + value.double().flatten(1).sum(1)
        position = forecast.position + offset.float()[:, None, None, None, None]
        return replace(forecast, position=position)


def predictions(model: nn.Module, test_set: protocol.TestSet, batch_size: int = 1) -> Predictions:
    """Positions and logits by window and pedestrian.

    Batches of one window have no padding, so that sums over an observation are comparable.
    """
    result = {}
    for outcome in outcomes(model, test_set, batch_size):
        observation = outcome.batch.observation
        position = outcome.forecast.in_city_frame(observation)
        logit = outcome.forecast.logit.detach().numpy()
        for b, s in observation.target_mask.nonzero().tolist():
            key = (observation.scene_id[b], observation.agent_id[b][s])
            result[key] = (position[b, s], logit[b, s])
    return result


def all_move_elsewhere(tracks: Tracks, last: int) -> Tracks:
    moved = {}
    for name, (first, path) in tracks.items():
        other = path.copy()
        other[max(last + 1 - first, 0) :] += 50.0
        moved[name] = (first, other)
    return moved


def all_but_one_leave(tracks: Tracks, last: int) -> Tracks:
    remaining = {}
    for name, (first, path) in tracks.items():
        if first <= last:
            remaining[name] = (first, path[: last + 1 - first])
    remaining["1.0"] = tracks["1.0"]
    return remaining


def one_leaves_after_two_more_frames(tracks: Tracks, last: int) -> Tracks:
    _, path = tracks["2.0"]
    return tracks | {"2.0": (0, path[: last + 3])}


def a_crowd_comes(tracks: Tracks, last: int) -> Tracks:
    crowd = {f"{n}.0": (last + 1, np.full((9, 2), 400.0 + n / 9)) for n in range(50, 90)}
    return tracks | crowd


Change = Callable[[Tracks, int], Tracks]  # of a recording after frame `last`


@pytest.mark.parametrize(
    "change",
    [all_move_elsewhere, all_but_one_leave, one_leaves_after_two_more_frames, a_crowd_comes],
)
def test_predictions_do_not_depend_on_the_future(
    raw: Path, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracks = walkers(0)
    before = predictions(Spy(), read_set(raw))
    # the changed recordings have other numbers of scored pedestrians
    monkeypatch.setattr(protocol.TestSet, "check", lambda test_set: test_set)
    windows = sorted({window for window, _ in before})
    for window in (windows[0], windows[3]):
        last_observed = int(window.split("-")[1]) - 70 + H - 1
        write(raw / "eth" / "biwi_eth.txt", change(tracks, last_observed))
        changed = read_set(raw)
        if change is all_but_one_leave:
            [scene] = [scene for scene in changed.windows if scene.scene_id == window]
            assert protocol.scored(scene).sum() == 1, "the change must have an effect"

        after = predictions(Spy(), changed)
        keys = {key for key in before if key[0] == window}
        assert len(keys) >= 3
        assert {key for key in after if key[0] == window} == keys
        for key in keys:
            np.testing.assert_equal(after[key], before[key], err_msg=str(key))


@pytest.mark.parametrize(
    "model",
    [ConstantVelocity(), SampledConstantVelocityConfig().build()],
    ids=["one mode", "sampled"],
)
def test_predictions_do_not_depend_on_batch_size_and_order(raw: Path, model: nn.Module) -> None:
    test_set = read_set(raw)
    backwards = replace(test_set, windows=test_set.windows[::-1])
    expected = predictions(model, test_set)
    for other in (predictions(model, test_set, batch_size=5), predictions(model, backwards)):
        assert other.keys() == expected.keys()
        for key, (position, _) in expected.items():
            assert np.array_equal(other[key][0], position), key


def test_a_failed_export_leaves_nothing(raw: Path, tmp_path: Path) -> None:
    test_set = read_set(raw)
    outcome = next(outcomes(ConstantVelocity(), test_set, batch_size=2))
    with (
        pytest.raises(ZeroDivisionError),
        protocol.sample_folder(tmp_path / "out", test_set) as add,
    ):
        add(outcome)
        assert list(tmp_path.rglob("sample_000.txt"))
        _ = 1 / 0
    assert {path.name for path in tmp_path.iterdir()} == {"raw"}


class ManyModes(nn.Module):
    """25 modes of each agent, or of the scene."""

    def __init__(self, joint: bool) -> None:
        super().__init__()
        self.joint = joint

    def forward(self, batch: Observation) -> Forecast:
        forecast = SampledConstantVelocityConfig(modes=25).build()(batch)
        if self.joint:
            return replace(forecast, logit=forecast.logit[:, 0])
        return forecast


@pytest.mark.parametrize("joint", [False, True])
def test_the_20_most_probable_modes_are_scored(raw: Path, joint: bool) -> None:
    model = ManyModes(joint)
    outcome = next(outcomes(model, read_set(raw), batch_size=2))
    forecast = model(outcome.batch.observation)
    for b, s in outcome.batch.observation.target_mask.nonzero().tolist():
        logit = forecast.logit[b] if joint else forecast.logit[b, s]
        kept = sorted(range(25), key=lambda mode: -logit[mode].item())[:20]
        kept_logit = outcome.forecast.logit[b] if joint else outcome.forecast.logit[b, s]
        assert torch.equal(outcome.forecast.position[b, s], forecast.position[b, s, kept])
        assert torch.equal(kept_logit, logit[kept])


def test_missing_predictions_and_nan_are_errors(raw: Path) -> None:
    (outcome,) = outcomes(ConstantVelocity(), read_set(raw), batch_size=500)
    assert protocol.score("eth", [outcome])["num_trajectories"] == protocol.COUNTS["eth"][1]

    truth = outcome.batch.truth
    without_first_window = truth.valid.clone()
    without_first_window[0] = False
    batch = SceneBatch(outcome.batch.observation, Truth(truth.position, without_first_window))
    with pytest.raises(TrajformerError, match="the model predicted"):
        protocol.score("eth", [replace(outcome, batch=batch)])

    nan = replace(outcome.forecast, position=outcome.forecast.position * torch.nan)
    with pytest.raises(TrajformerError, match="ADE_1 of the model is not a number"):
        protocol.score("eth", [replace(outcome, forecast=nan)])


def test_a_model_of_other_data_is_accepted_if_its_clock_is_the_same(raw: Path) -> None:
    model = ConstantVelocity()
    model.trained_on = DataSpec(split="pedestrians")
    assert next(outcomes(model, read_set(raw)))
    model.trained_on = DataSpec(split="train", period_s=0.1, num_history=20)
    clocks = r"period_s 0\.4 and num_history 8, but the training scenes have 0\.1 and 20"
    with pytest.raises(TrajformerError, match=clocks):
        next(outcomes(model, read_set(raw)))


def test_windows_of_other_lengths_are_refused(raw: Path) -> None:
    test_set = read_set(raw)
    shorter = [replace(scene, num_history=7, num_future=13) for scene in test_set.windows]
    lengths = "7 observed and 13 future frames, the protocol has 8 and 12"
    with pytest.raises(TrajformerError, match=lengths):
        replace(test_set, windows=shorter).check()
