"""Training: files and length of a run, determinism, precision, clipping, and training scenes."""

import re
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.scenes import PERIOD_S, make_scene
from support.training import largest_difference, log_of, recipe, training_store, weights

from trajformer.data.sample import BatchConfig
from trajformer.errors import CheckpointError, TrajformerError, TrajformerWarning
from trajformer.evaluation.evaluate import evaluate
from trajformer.losses.set_loss import SetLossConfig
from trajformer.models.forecaster import Predictor
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.models.wayformer import WayformerConfig
from trajformer.recipes.checkpoint import load_checkpoint, load_predictor
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes import notices
from trajformer.scenes.scene import PolylineKind, Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.spec import DataSpec
from trajformer.scenes.store import SceneStore
from trajformer.training.base import TaskModule
from trajformer.training.forecasting import TASK, ForecastingModule, SceneData
from trajformer.training.progress import duration_text
from trajformer.training.run import train


def fit(out: Path, config: TrainConfig, *, resume: bool = False) -> Path:
    """Train without progress lines; the best checkpoint."""
    return train(config, TASK, out, resume=resume, progress=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_store(tmp_path_factory.mktemp("store"), 9, 3)


@pytest.fixture(scope="module")
def whole(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    """Runs of four epochs, without and with averaged weights."""
    runs = {average: tmp_path_factory.mktemp("whole") for average in (0.0, 0.8)}
    for average, out in runs.items():
        fit(out, recipe(store, trainer={"epochs": 4}, optim={"average": average}))
    return runs


def test_a_run_writes_checkpoints_logs_and_its_recipe(
    store: Path, whole: dict[float, Path]
) -> None:
    out = whole[0.0]
    _, config = load_checkpoint(out / "best.ckpt", TrainConfig)
    assert config == recipe(store, trainer={"epochs": 4}, loss=SetLossConfig())
    values = log_of(out)
    assert values.index.tolist() == [4, 9, 14, 19]  # 9 scenes are 5 batches
    best = torch.load(out / "best.ckpt", weights_only=True)
    assert best["global_step"] - 1 == values.idxmin()
    loss = log_of(out, "train/loss")
    assert len(loss) == 20
    assert loss.iloc[-4:].mean() < loss.iloc[:4].mean()
    rate = log_of(out, "lr-AdamW/pg1")
    assert rate.iloc[-1] < rate.max()
    assert any((out / "tensorboard").iterdir())


@pytest.mark.parametrize("average", [0.0, 0.8])
def test_a_checkpoint_holds_the_weights_that_were_validated(
    store: Path, whole: dict[float, Path], average: float
) -> None:
    out = whole[average]
    if average:
        assert largest_difference(weights(out), weights(out, key="current_model_state")) > 1e-4
    predictor = load_predictor(out / "last.ckpt")
    metrics = evaluate(predictor, SceneStore(store, "val"), batch_size=3).metrics
    for name, value in metrics.items():
        if not name.startswith("num_"):
            validated = log_of(out, f"val/{name}").iloc[-1]
            # float32 at 50 m has steps of 4e-6 m
            assert validated == pytest.approx(value, abs=1e-5), name


def test_lines_show_the_progress_between_validations(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trajformer.training.progress.LINE_S", 0.0)
    config = recipe(store, trainer={"epochs": 2, "validate_every": 2})
    train(config, TASK, tmp_path)
    lines = [text for text in capsys.readouterr().err.splitlines() if " s left" in text]
    assert [text[:9] for text in lines] == ["epoch 1/2"] * 5 + ["epoch 2/2"] * 6
    *between, last = lines
    assert "val/minFDE6" in last
    assert not any("val/" in text for text in between)


def test_the_seed_determines_the_weights(
    store: Path, whole: dict[float, Path], tmp_path: Path
) -> None:
    for name, seed in (("same", 0), ("other", 1)):
        torch.manual_seed(5)
        fit(tmp_path / name, recipe(store, trainer={"epochs": 4}, seed=seed))
    assert largest_difference(weights(tmp_path / "same"), weights(whole[0.0])) == 0.0
    assert largest_difference(weights(tmp_path / "other"), weights(whole[0.0])) > 1e-2


def test_a_training_starts_from_a_checkpoint(
    store: Path, whole: dict[float, Path], tmp_path: Path
) -> None:
    before = whole[0.0] / "last.ckpt"
    still = {"learning_rate": 1e-12}
    config = recipe(store, init=str(before), seed=3, trainer={"epochs": 1}, optim=still)
    fit(tmp_path / "run", config)
    assert largest_difference(weights(tmp_path / "run"), weights(whole[0.0])) < 1e-6
    before.rename(tmp_path / "moved")  # a resumed run does not need it
    try:
        longer = recipe(store, init=str(before), seed=3, trainer={"epochs": 2}, optim=still)
        fit(tmp_path / "run", longer, resume=True)
    finally:
        (tmp_path / "moved").rename(before)
    wider = recipe(store, init=str(before), model={"map_width": 16})
    difference = r"init: .*last.ckpt: has model.mmtransformer.map_width 8, not 16"
    with pytest.raises(TrajformerError, match=difference):
        fit(tmp_path / "wider", wider)
    names = r"pretrained:none: no weights of this name; .* crowd_eth_ucy/eth"
    with pytest.raises(CheckpointError, match=names):
        fit(tmp_path / "none", recipe(store, init="pretrained:none"))


def test_gradients_are_clipped(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms: list[float] = []

    def record(self: Any, optimizer: torch.optim.Optimizer, **clip: Any) -> None:
        self.clip_gradients(optimizer, **clip)
        gradients = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradients.append(parameter.grad.norm())
        norms.append(float(torch.stack(gradients).norm()))

    monkeypatch.setattr(ForecastingModule, "configure_gradient_clipping", record)
    for clip in (0.05, 0.0):
        fit(tmp_path / str(clip), recipe(store, trainer={"epochs": 1}, optim={"clip": clip}))
    assert len(norms) == 10
    assert max(norms[:5]) <= 0.0501
    assert min(norms[5:]) > 0.1


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.filterwarnings("ignore:.*fp16 is not supported on CPU")
def test_mixed_precision_runs(store: Path, tmp_path: Path, precision: str) -> None:
    out = fit(tmp_path, recipe(store, trainer={"epochs": 1, "precision": precision}))
    for value in weights(tmp_path, "best").values():
        assert value.dtype == torch.float32
        assert value.isfinite().all()
    assert load_checkpoint(out, TrainConfig)[1].trainer.precision == precision


def test_early_stopping(store: Path, tmp_path: Path) -> None:
    trainer = {"epochs": 4, "early_stopping": 1}
    fit(tmp_path, recipe(store, trainer=trainer, optim={"learning_rate": 1e-12}))
    assert len(log_of(tmp_path)) == 2, "the loss does not change"


@pytest.fixture
def rare(store: Path, tmp_path: Path) -> Path:
    """A run of four epochs of five steps, validated after three."""
    fit(tmp_path / "rare", recipe(store, trainer={"epochs": 4, "validate_every": 3}))
    return tmp_path / "rare"


def test_the_last_epoch_is_validated(rare: Path) -> None:
    assert log_of(rare).index.tolist() == [14, 19]
    assert weights(rare, key="global_step") == 20


def test_a_run_is_not_resumed_with_fewer_epochs(store: Path, rare: Path) -> None:
    shorter = recipe(store, trainer={"epochs": 2})
    with pytest.raises(CheckpointError, match=r"has 4 epochs, more than trainer\.epochs 2"):
        fit(rare, shorter, resume=True)
    assert "epochs: 4\n" in (rare / "config.yaml").read_text()


def test_a_run_is_not_resumed_from_weights_alone(store: Path, rare: Path) -> None:
    content = torch.load(rare / "last.ckpt", weights_only=True)
    without_state = {name: content[name] for name in ("trajformer", "state_dict")}
    torch.save(without_state, rare / "last.ckpt")
    message = "has no state of a training; train from its weights with --init"
    with pytest.raises(CheckpointError, match=message):
        fit(rare, recipe(store, trainer={"epochs": 4}), resume=True)


def test_augmentation_and_model_draw_different_numbers() -> None:
    step: Any = SimpleNamespace(config=SimpleNamespace(seed=3), global_step=5, global_rank=0)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        augmentation = torch.rand(64, generator=TaskModule.seed_step(step))
        model = torch.rand(64)  # of the global generator
        return augmentation, model

    augmentation, model = draw()
    again = draw()
    assert torch.equal(augmentation, again[0])
    assert torch.equal(model, again[1])
    correlation = torch.corrcoef(torch.stack([augmentation, model]))[0, 1]
    assert (augmentation - model).abs().mean() > 0.2
    assert abs(correlation) < 0.5


def test_a_folder_with_a_run_is_not_overwritten(store: Path, tmp_path: Path) -> None:
    config = recipe(store, trainer={"epochs": 1})
    fit(tmp_path, config, resume=True)  # without a checkpoint the run starts
    before = weights(tmp_path)
    with pytest.raises(TrajformerError, match="already contains a run"):
        fit(tmp_path, config)
    fit(tmp_path, config, resume=True)  # a finished run does not change
    assert largest_difference(weights(tmp_path), before) == 0.0


CHANGES: list[tuple[dict[str, Any], str]] = [
    (
        {"model": {"max_neighbors": 5}},
        r"model\.mmtransformer\.max_neighbors \d+, not 5; resume with the config.yaml",
    ),
    ({"model": WayformerConfig(30)}, r"model\.mmtransformer given, not null"),
    ({"optim": {"learning_rate": 0.5}}, r"optim\.learning_rate 0\.\d+, not 0\.5; resume"),
    ({"data": {"limit_train": 2}}, r"data\.limit_train null, not 2"),
    ({"data": {"val_split": "train"}}, r'data\.val_split "val", not "train"'),
    (
        {"seed": 7, "augment": {"flip": 0.25}},
        r"augment\.flip .*, not 0\.25; seed \d+, not 7",
    ),
]


@pytest.mark.filterwarnings("ignore:.*validation scenes are also training scenes")
def test_a_run_is_not_resumed_with_another_recipe(store: Path, tmp_path: Path) -> None:
    one_epoch = {"trainer": {"epochs": 1}}
    fit(tmp_path, recipe(store, **one_epoch))
    before = weights(tmp_path)
    for changes, message in CHANGES:
        changed = recipe(store, **one_epoch, **changes)
        with pytest.raises(CheckpointError, match=r"last\.ckpt: was trained with .*" + message):
            fit(tmp_path, changed, resume=True)
    assert largest_difference(weights(tmp_path), before) == 0.0


def test_a_length_in_steps_ends_within_an_epoch(store: Path, tmp_path: Path) -> None:
    trainer = {"epochs": None, "steps": 8, "validate_every": 2}
    schedule = {"muon_rate": 2e-3, "warmup": 0.25}
    for name in ("first", "same"):
        config = recipe(store, trainer=trainer, optim=schedule)
        fit(tmp_path / name, config)
    out = tmp_path / "first"
    assert weights(out, key="global_step") == 8
    assert log_of(out).index.tolist() == [7]  # epochs have five steps; the end is validated
    rates = log_of(out, "lr-Muon/pg1").tolist()
    assert rates[:2] == pytest.approx([1.5e-3, 3e-3])  # a quarter of eight steps is the warm-up
    assert 0 < rates[-1] < 0.2 * 3e-3
    assert largest_difference(weights(out), weights(tmp_path / "same")) == 0.0

    fit(out, config, resume=True)  # a finished run does not change
    assert largest_difference(weights(out), weights(tmp_path / "same")) == 0.0
    shorter = recipe(store, trainer=trainer | {"steps": 7}, optim=schedule)
    with pytest.raises(CheckpointError, match=r"has 8 steps, more than trainer\.steps 7"):
        fit(out, shorter, resume=True)
    longer = recipe(store, trainer=trainer | {"steps": 21}, optim=schedule)
    fit(out, longer, resume=True)
    assert weights(out, key="global_step") == 21
    assert log_of(out).index[-1] == 20


def test_lines_show_the_step_of_a_length_in_steps(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trajformer.training.progress.LINE_S", 0.0)
    train(recipe(store, trainer={"epochs": None, "steps": 3}), TASK, tmp_path)
    lines = [text for text in capsys.readouterr().err.splitlines() if " s left" in text]
    assert [text.split("  ")[0] for text in lines] == [
        "step 1/3",
        "step 2/3",
        "step 3/3",
        "step 3/3",
    ]
    assert " 0 s left" in lines[-1]


def test_the_first_line_states_the_model_the_data_and_the_length(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trajformer.training.progress.FIRST_LINE_S", 0.0)
    train(recipe(store, trainer={"epochs": 2}), TASK, tmp_path)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert re.match(r"train: MMTransformer \(0.0\d M parameters\); \d+ items of .*store", first)
    assert "2 epochs of " in first
    assert second.startswith("epoch 1/2  ")
    assert " left" in second


def test_a_slow_step_has_a_line_and_a_quick_one_has_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with notices.notice("quick ..."):
        pass
    monkeypatch.setattr(notices, "NOTICE_S", 0.0)
    with notices.notice("slow ..."):
        time.sleep(0.2)
    assert capsys.readouterr().err == "slow ...\n"


def test_durations_are_in_units_that_matter() -> None:
    assert [duration_text(seconds) for seconds in (45.2, 119.0, 725.0, 11_100.0)] == [
        "45 s",
        "119 s",
        "12 min",
        "3 h 5 min",
    ]


def test_a_training_builds_its_model_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = MMTransformerConfig.build
    devices = []

    def counted(self: MMTransformerConfig) -> Any:
        model = build(self)
        devices.append(next(model.parameters()).device.type)
        return model

    monkeypatch.setattr(MMTransformerConfig, "build", counted)
    config = recipe(store, trainer={"epochs": 1})
    config.check()
    assert devices == ["meta"]
    fit(tmp_path, config)
    fit(tmp_path, config, resume=True)
    assert devices == ["meta", "cpu", "cpu"]  # one for each start


SCENES = [make_scene(4, seed=seed) for seed in range(6)]


def scene_data(root: Path, train: list[Scene], val: list[Scene], **config: object) -> SceneData:
    for split, scenes in (("train", train), ("val", val)):
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    return SceneData(replace(recipe(root).data, **config))  # type: ignore[arg-type]


def test_scenes_in_both_splits_are_counted(tmp_path: Path) -> None:
    same_id = replace(
        SCENES[1], origin=SCENES[1].origin + 100.0
    )  # data sets count sequences in each split
    warning = "2 of 4 validation scenes are also training scenes"
    with pytest.warns(TrajformerWarning, match=warning):
        data = scene_data(tmp_path / "a", SCENES[:4], [same_id, *SCENES[2:5]])
    assert data.spec == DataSpec("synthetic", "train", "m", PERIOD_S, 10, 12, True, True)
    with pytest.warns(TrajformerWarning, match="1 of 2 validation scenes are also"):
        scene_data(tmp_path / "b", SCENES[:4], SCENES[2:4], limit_train=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrajformerWarning)
        scene_data(tmp_path / "c", SCENES[:4], [same_id, *SCENES[4:]])
        scene_data(tmp_path / "d", SCENES[:4], SCENES[3:4], limit_train=3)


def test_branches_of_scenes_in_both_splits_are_counted(tmp_path: Path) -> None:
    branches = [replace(SCENES[n // 2], scene_id=f"{n // 2}.{n % 2}") for n in range(8)]
    with pytest.warns(TrajformerWarning, match="1 of 2 validation scenes are also"):
        scene_data(tmp_path, branches, branches[5:7], branches=True, limit_train=3)


def test_maps_of_road_lines_are_received_on_request_only(tmp_path: Path) -> None:
    drawn = [
        replace(scene, polyline_kind=np.full_like(scene.polyline_kind, PolylineKind.ROAD_LINE))
        for scene in SCENES[:4]
    ]
    with pytest.warns(
        TrajformerWarning,
        match="road edges and road lines only, which models receive with data.batch.road_lines",
    ):
        data = scene_data(tmp_path, drawn[:2], drawn[2:])
    assert not data.spec.has_map and not data.train[[0]].observation.polyline_mask.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrajformerWarning)
        data = scene_data(tmp_path, drawn[:2], drawn[2:], batch=BatchConfig(road_lines=True))
    assert data.spec.has_map and data.train[[0]].observation.polyline_mask.all()
    assert not data.spec.has_lanes
    with pytest.warns(TrajformerWarning, match="data.val: .*: the maps have no lanes"):
        scene_data(tmp_path / "lanes", SCENES[:2], drawn[2:], batch=BatchConfig(road_lines=True))


def test_a_run_keeps_the_properties_of_its_training_scenes(tmp_path: Path) -> None:
    config = replace(recipe(tmp_path), data=scene_data(tmp_path, SCENES[:2], SCENES[2:4]).config)
    config = replace(config, trainer=replace(config.trainer, epochs=1))
    fit(tmp_path / "run", config)
    expected = DataSpec("synthetic", "train", "m", PERIOD_S, 10, 12, True, True)
    for name in ("best.ckpt", "last.ckpt"):
        assert Predictor(load_checkpoint(tmp_path / "run" / name)[0]).trained_on == expected
