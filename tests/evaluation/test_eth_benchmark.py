"""The benchmark of ETH/UCY: metrics against text files, table, checkpoints, real recordings."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.cli import error_line
from support.cli import run as run_command
from support.eth_scenes import (
    FILES,
    F,
    counted,
    walkers,
    write,
    write_scenes,
)

from trajformer.cli.protocols import models_of
from trajformer.errors import TrajformerError
from trajformer.evaluation.protocols import eth_ucy as protocol
from trajformer.evaluation.protocols import eth_ucy_table
from trajformer.models.constant_velocity import (
    ConstantVelocityConfig,
)
from trajformer.recipes.checkpoint import describe, load_predictor
from trajformer.recipes.recipe import DataConfig, TrainConfig
from trajformer.scenes.spec import DataSpec

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_scenes(tmp_path / "raw", monkeypatch)


def read_recording(path: Path) -> np.ndarray:
    """Frame, pedestrian, x and y of each line."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return np.array(rows, object)[:, [0, 1, 13, 15]].astype(np.float32)


def read_samples(window: Path) -> np.ndarray:
    """The samples [K, n, 4] of a window: frame, pedestrian, x and y."""
    files = sorted(window.iterdir())
    return np.stack([np.loadtxt(path, dtype=np.float32, ndmin=2) for path in files])


def scored_from_text(raw: Path, folder: Path, name: str) -> dict[str, float]:
    """ADE and FDE of exported samples, as AgentFormer's public eval.py reads and scores them."""
    ade = []
    fde = []
    for recording in sorted((folder / "samples").iterdir()):
        truth = read_recording(raw / name / f"{recording.name}.txt")
        for window in sorted(recording.iterdir()):
            samples = read_samples(window)
            first_frame = samples[:, :, 0].min()
            assert samples[0, 0, 0] == first_frame
            assert window.name == f"frame_{int(first_frame) - 1:06d}"
            for pedestrian in np.unique(samples[..., 1]):
                sampled = samples[:, samples[0, :, 1] == pedestrian]
                is_recorded = (truth[:, 1] == pedestrian) & np.isin(truth[:, 0], sampled[0, :, 0])
                recorded = truth[is_recorded]
                assert sampled.shape[1] == len(recorded) == F
                distance = np.linalg.norm(sampled[..., 2:] - recorded[:, 2:], axis=-1)
                ade.append(distance.mean(-1).min())
                fde.append(distance[:, -1].min())
            exported = np.loadtxt(folder / "gt" / recording.name / f"{window.name}.txt", ndmin=2)
            rows_of_truth = set(map(tuple, exported[:, :2]))
            rows_of_samples = set(map(tuple, samples[0, :, :2].astype(float)))
            assert rows_of_truth == rows_of_samples
    return {
        "ADE_20": float(np.mean(ade)),
        "FDE_20": float(np.mean(fde)),
        "num_trajectories": len(ade),
    }


class Benchmark(NamedTuple):
    """The result of the command."""

    metrics: dict[str, dict[str, dict[str, float]]]  # by model, scene and name
    samples: Path
    printed: str


@pytest.fixture
def benchmark(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Benchmark:
    """The command on five small scenes, with samples of all models."""
    metrics = tmp_path / "new" / "metrics.json"
    samples = tmp_path / "samples"
    words = ("--data", raw, "--json", metrics, "--export", samples)
    assert run_command("benchmark", "eth_ucy", *words) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    return Benchmark(json.loads(metrics.read_text()), samples, printed)


def test_metrics_equal_those_of_the_exported_samples(raw: Path, benchmark: Benchmark) -> None:
    models = ["constant_velocity", "constant_velocity_sampled", "crowd_eth_ucy"]
    assert list(benchmark.metrics) == models
    for model, scenes in benchmark.metrics.items():
        assert list(scenes) == [*FILES, "mean"]
        for name in FILES:
            metrics = scenes[name]
            expected = scored_from_text(raw, benchmark.samples / model / name, name)
            assert {key: metrics[key] for key in expected} == pytest.approx(expected, abs=2e-4)
            assert (metrics["num_windows"], metrics["num_trajectories"]) == counted(raw, name)


def test_the_mean_is_over_the_five_scenes(benchmark: Benchmark) -> None:
    for scenes in benchmark.metrics.values():
        for name in protocol.METRICS:
            mean = np.mean([scenes[scene][name] for scene in FILES])
            assert scenes["mean"][name] == pytest.approx(mean)


def test_each_model_is_a_row_of_the_printed_table(benchmark: Benchmark) -> None:
    for model, scenes in benchmark.metrics.items():
        cell = f"{scenes['eth']['ADE_20']:.3f}/{scenes['eth']['FDE_20']:.3f}"
        rows = [line for line in benchmark.printed.splitlines() if line.startswith(model)]
        assert any(cell in row for row in rows)


def test_more_samples_and_weaker_conditions_give_smaller_errors(benchmark: Benchmark) -> None:
    one_mode = benchmark.metrics["constant_velocity"]["mean"]
    sampled = benchmark.metrics["constant_velocity_sampled"]["mean"]
    assert one_mode["ADE_20"] == one_mode["ADE_1"]
    assert one_mode["ADE_20"] == pytest.approx(one_mode["JADE_20"])
    assert sampled["ADE_20"] < one_mode["ADE_20"]
    assert sampled["ADE_20"] <= sampled["JADE_20"]
    assert sampled["FDE_20"] <= sampled["FDE_at_best_ADE_20"]


def test_an_export_is_complete_and_is_not_overwritten(
    raw: Path, benchmark: Benchmark, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not list(benchmark.samples.rglob(".*"))
    assert (benchmark.samples / "constant_velocity" / "eth" / "samples").is_dir()
    words = ("--data", raw, "--export", benchmark.samples)
    assert run_command("benchmark", "eth_ucy", *words) == 1
    assert "samples: has files; give another folder" in capsys.readouterr().err


def test_published_means_agree_with_their_rows() -> None:
    names = [name for name, _, _ in eth_ucy_table.BEST_OF_20]
    assert len(names) == len(set(names)) == 9
    for name, cells, source in eth_ucy_table.BEST_OF_20:
        *scenes, mean = [[float(number) for number in cell.split("/")] for cell in cells.split()]
        assert source
        assert len(scenes) == 5
        rounding = 0.0101  # of all numbers
        assert np.mean(scenes, axis=0) == pytest.approx(mean, abs=rounding), name


def test_the_table_has_published_rows_and_rows_of_models() -> None:
    models = {"mine": {"eth": dict.fromkeys(protocol.METRICS, 0.25)}}
    lines = eth_ucy_table.published_table(models, {"eth": 0.5}).splitlines()
    (agentformer,) = [line for line in lines if line.startswith("AgentFormer")]
    published = ["0.45/0.75", "0.14/0.22", "0.25/0.45", "0.18/0.30", "0.14/0.24", "0.23/0.39"]
    assert agentformer.split()[2:8] == published

    unknown = ["-"] * 5  # the other scenes and the mean
    rows = [line.split() for line in lines if line.startswith("mine")]
    *errors, collision_rate = rows
    assert errors == [["mine", "0.250/0.250", *unknown]] * 4
    assert collision_rate == ["mine", "25.00", *unknown]
    assert ["recorded", "50.00", *unknown] in [line.split() for line in lines]


def checkpoint(path: Path, split: str = "eth_train") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    recipe = TrainConfig(ConstantVelocityConfig(modes=3), DataConfig(train_split=split))
    head = describe(recipe, DataSpec(split=split))
    torch.save({"trajformer": head, "state_dict": {}}, path)
    return path


def test_checkpoints_are_assigned_by_the_names_of_scenes(tmp_path: Path) -> None:
    zara1 = checkpoint(tmp_path / "a" / "zara1.ckpt")
    eth = checkpoint(tmp_path / "a" / "eth.ckpt")
    other_eth = checkpoint(tmp_path / "b" / "eth" / "best.ckpt")
    hotel = checkpoint(tmp_path / "b" / "hotel" / "best.ckpt")
    (tmp_path / "b" / "notes").mkdir()
    expected = {"a": {"eth": eth, "zara1": zara1}, "b": {"eth": other_eth, "hotel": hotel}}

    models = models_of([tmp_path / "a", other_eth, hotel])
    assert models == expected
    assert list(models["a"]) == ["eth", "zara1"], "the order of the protocol"
    assert models_of([zara1, eth, tmp_path / "b"]) == expected
    assert models_of([]) == {}


def test_folders_of_checkpoints_with_one_name_have_their_path_as_label(tmp_path: Path) -> None:
    checkpoint(tmp_path / "a" / "eth.ckpt")
    twin = checkpoint(tmp_path / "other" / "a" / "eth.ckpt")
    labels = list(models_of([tmp_path / "a", twin]))
    assert labels == [str(tmp_path / "a"), str(twin.parent)]


def test_checkpoints_without_a_scene_or_two_for_one_scene_are_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "a" / "eth.ckpt")
    checkpoint(tmp_path / "other" / "a" / "eth.ckpt")
    for folder in ("nothing", "other"):
        with pytest.raises(TrajformerError, match="no checkpoint is named after one of the scene"):
            models_of([tmp_path / folder])
    second = checkpoint(tmp_path / "a" / "eth" / "best.ckpt")
    with pytest.raises(TrajformerError, match="is also for eth"):
        models_of([tmp_path / "a", second])


def test_a_model_trained_on_the_test_scene_is_refused(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint(tmp_path / "zara1.ckpt", "eth_train")
    assert load_predictor(path, torch.device("cpu")).trained_on == DataSpec(split="eth_train")
    assert run_command("benchmark", "eth_ucy", "--data", raw, "--checkpoint", path) == 1
    message = "the model was trained on split 'eth_train', which contains zara1"
    assert message in capsys.readouterr().err


def test_evaluate_reports_a_training_split(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert run_command("preprocess", "eth_ucy", raw, store) == 0
    for trained_on, known in (
        ("eth_train", True),  # contains zara1
        ("zara1_train", False),
        ("zara1_test", True),
        ("eth_test", False),
    ):
        path = checkpoint(tmp_path / f"{trained_on}.ckpt", trained_on)
        capsys.readouterr()
        words = ("--checkpoint", path, "--store", store, "--split", "zara1_test")
        assert run_command("evaluate", *words) == 0
        assert ("on its training split" in capsys.readouterr().out) == known, trained_on


def test_other_recordings_are_refused(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("benchmark", "eth_ucy", "--data")
    windows, trajectories = protocol.COUNTS["hotel"]
    tracks = walkers(10)
    del tracks["3.0"]  # one trajectory in each window
    write(raw / "hotel" / "biwi_hotel.txt", tracks)
    counts = f"hotel: {windows} windows and {trajectories - windows} trajectories to score"
    assert f"{counts}, expected" in error_line(capsys, *command, raw)

    (raw / "zara1" / "crowds_zara01.txt").unlink()
    assert "no test recording of zara1" in error_line(capsys, *command, raw)
    assert "nowhere: no such folder" in error_line(capsys, *command, tmp_path / "nowhere")


MODEL = ("--model", "constant_velocity_sampled")


@pytest.fixture
def store(raw: Path, tmp_path: Path) -> Path:
    assert run_command("preprocess", "eth_ucy", raw, tmp_path / "store", "--workers", 1) == 0
    return tmp_path / "store"


def test_a_store_is_also_scored_by_20_modes(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = tmp_path / "metrics.json"
    table = tmp_path / "agents.csv"
    words = (*MODEL, "--store", store, "--split", "eth_test", "--json", metrics, "--csv", table)
    assert run_command("evaluate", *words) == 0
    names = [name for name in json.loads(metrics.read_text()) if name.endswith("20")]
    assert names == ["minADE20", "minFDE20", "MR20", "brier_minFDE20"]
    assert "minFDE20" in table.read_text().splitlines()[0]
    assert "minADE20" in capsys.readouterr().out


def test_the_density_of_forecasts_is_drawn(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forecasts = tmp_path / "f.parquet"
    picture = tmp_path / "density.png"
    words = (*MODEL, "--store", store, "--split", "eth_test", "--out", forecasts)
    assert run_command("predict", *words) == 0
    plot = ("plot", store, "--density", "--out", picture)
    assert run_command(*plot, "--forecasts", forecasts, "--random", 1) == 0
    assert picture.is_file()
    assert "--density needs --forecasts" in error_line(capsys, *plot, "--split", "eth_test")


# ---- real recordings ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scored(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The protocol without checkpoints: metrics by model and scene."""
    file = tmp_path_factory.mktemp("scored") / "metrics.json"
    assert run_command("benchmark", "eth_ucy", "--data", real_data / "eth_ucy", "--json", file) == 0
    return dict(json.loads(file.read_text()))


CONSTANT_VELOCITY = {  # ADE_1 and FDE_1
    "eth": (1.0755, 2.2819),
    "hotel": (0.3194, 0.6142),
    "univ": (0.5242, 1.1651),
    "zara1": (0.4272, 0.9524),
    "zara2": (0.3239, 0.7244),
    "mean": (0.5340, 1.1476),
}


def test_constant_velocity_on_the_real_recordings(scored: dict[str, Any]) -> None:
    metrics = scored["constant_velocity"]
    for scene, counts in protocol.COUNTS.items():
        assert (metrics[scene]["num_windows"], metrics[scene]["num_trajectories"]) == counts
    for scene, (ade, fde) in CONSTANT_VELOCITY.items():
        assert metrics[scene]["ADE_1"] == pytest.approx(ade, abs=1e-4)
        assert metrics[scene]["FDE_1"] == pytest.approx(fde, abs=1e-4)
    # Distances of 0.2 m are frequent, because coordinates are in centimetres: rounding decides.
    assert metrics["univ"]["collision_rate_20"] == pytest.approx(0.2022, abs=1e-3)

    sampled = scored["constant_velocity_sampled"]["mean"]
    assert sampled["ADE_20"] == pytest.approx(0.418, abs=1e-3)
    assert sampled["FDE_20"] == pytest.approx(0.866, abs=1e-3)


def test_the_weights_of_the_package_give_the_documented_metrics(scored: dict[str, Any]) -> None:
    crowd = scored["crowd_eth_ucy"]
    documented = {"ADE_20": 0.197, "FDE_20": 0.321, "ADE_1": 0.477, "FDE_1": 1.004}
    for name, value in documented.items():
        assert crowd["mean"][name] == pytest.approx(value, abs=2e-3)
    constant_velocity = scored["constant_velocity"]
    for scene, counts in protocol.COUNTS.items():
        assert (crowd[scene]["num_windows"], crowd[scene]["num_trajectories"]) == counts
        assert crowd[scene]["FDE_1"] < constant_velocity[scene]["FDE_1"]
        assert crowd[scene]["ADE_1"] < constant_velocity[scene]["ADE_1"]
