"""The ETH/UCY protocol: models do not see the future; figures from text files, the table, and errors."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cli import run as run_command
from support.recordings import Walk, write_recording
from torch import Tensor, nn

from trajformer.cli.protocols import models_of, read_test_sets
from trajformer.data.batch import Observation, SceneBatch, Truth
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.evaluation.protocols import eth_ucy as protocol
from trajformer.evaluation.protocols import eth_ucy_table
from trajformer.models.constant_velocity import (
    ConstantVelocity,
    ConstantVelocityConfig,
    SampledConstantVelocityConfig,
)
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import describe, load_predictor
from trajformer.recipes.recipe import DataConfig, TrainConfig
from trajformer.scenes.spec import DataSpec

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
H, F = 8, 12
FILES = {"eth": ["biwi_eth"], "hotel": ["biwi_hotel"], "univ": ["students001", "students003"]}
FILES |= {"zara1": ["crowds_zara01"], "zara2": ["crowds_zara02"]}
Predictions = dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
Tracks = dict[str, tuple[int, np.ndarray]]  # by pedestrian: the first frame, positions [n, 2]


def walkers(seed: int, count: int = 9, frames: int = 26) -> Tracks:
    """Random pedestrians; the first three are present in all frames."""
    rng = np.random.default_rng(seed)
    tracks: Tracks = {}
    for number in range(count):
        first = 0 if number < 3 else int(rng.integers(0, frames - 3))
        length = frames if number < 3 else int(rng.integers(2, frames - first + 1))
        steps = rng.normal(0, 0.35, 2) + rng.normal(0, 0.12, (length, 2))
        tracks[f"{number + 1}.0"] = (first, 400.0 + rng.uniform(-3, 3, 2) + steps.cumsum(0))
    return tracks


def write(path: Path, tracks: Tracks, first: int = 70) -> None:
    walks = [Walk(name, positions, start) for name, (start, positions) in tracks.items()]
    write_recording(path, walks, interval=1, first=first)


def counted(raw: Path, name: str) -> tuple[int, int]:
    """Windows and trajectories, counted from the text."""
    windows, trajectories = 0, 0
    for path in sorted((raw / name).glob("*.txt")):
        seen: dict[float, set[int]] = {}
        for line in path.read_text().splitlines():
            seen.setdefault(float(line.split()[1]), set()).add(round(float(line.split()[0])))
        for frame in range(500):
            whole = sum(
                all(frame + step in frames for step in range(H + F)) for frames in seen.values()
            )
            windows, trajectories = windows + (whole > 0), trajectories + whole
    return windows, trajectories


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five small scenes, and a protocol that expects them."""
    folder = tmp_path / "raw"
    for number, (name, files) in enumerate(FILES.items()):
        for part, file in enumerate(files):
            write(folder / name / f"{file}.txt", walkers(10 * number + part))
        monkeypatch.setitem(protocol.COUNTS, name, counted(folder, name))
    return folder


def read_set(raw: Path, name: str = "eth") -> protocol.TestSet:
    return next(found for found in read_test_sets(raw) if found.name == name)


class Spy(nn.Module):
    """Constant velocity plus an offset that depends on every value of the observation."""

    def forward(self, batch: Observation) -> Forecast:
        forecast = ConstantVelocity()(batch)
        values = [getattr(batch, field.name) for field in fields(batch)]
        found = sum(
            value.double().flatten(1).sum(1) for value in values if isinstance(value, Tensor)
        )
        found = (
            found
            + torch.tensor([len(agents) for agents in batch.agent_id])
            + 10 * batch.target_mask.sum(1)
        )
        return replace(
            forecast, position=forecast.position + found.float()[:, None, None, None, None]
        )


def predictor(model: nn.Module) -> Predictor:
    return Predictor(model.eval(), BatchConfig(), torch.device("cpu"))


def predictions(model: nn.Module, found: protocol.TestSet, batch_size: int = 1) -> Predictions:
    """Positions and logits by window and pedestrian; one window at a time, so that padding is the same."""
    result = {}
    for outcome in protocol.outcomes(
        predictor(model), found, batch_size=batch_size, progress=False
    ):
        observation = outcome.batch.observation
        position = outcome.forecast.in_city_frame(observation)
        for b, s in observation.target_mask.nonzero().tolist():
            key = (observation.scene_id[b], observation.agent_id[b][s])
            result[key] = (position[b, s], outcome.forecast.logit[b, s].detach().numpy())
    return result


def changes(tracks: Tracks, last: int) -> Iterator[tuple[str, Tracks]]:
    """Recordings that differ only after frame `last`."""
    moved = {name: (first, way.copy()) for name, (first, way) in tracks.items()}
    for first, way in moved.values():
        way[max(last + 1 - first, 0) :] += 50.0
    yield "all pedestrians move elsewhere", moved
    gone = {
        name: (first, way[: last + 1 - first])
        for name, (first, way) in tracks.items()
        if first <= last
    }
    yield "all but one are gone", gone | {"1.0": tracks["1.0"]}
    one = dict(tracks)
    one["2.0"] = (0, tracks["2.0"][1][: last + 3])
    yield "one leaves after two more frames", one
    yield (
        "a crowd comes",
        tracks | {f"{n}.0": (last + 1, np.full((9, 2), 400.0 + n / 9)) for n in range(50, 90)},
    )


def test_predictions_do_not_depend_on_the_future(raw: Path) -> None:
    path, tracks = raw / "eth" / "biwi_eth.txt", walkers(0)
    before = predictions(Spy(), read_set(raw))
    windows = sorted({window for window, _ in before})
    for window in (windows[0], windows[3]):
        same = {key for key in before if key[0] == window}
        for change, tracks_after in changes(tracks, int(window.split("-")[1]) - 70 + H - 1):
            write(path, tracks_after)
            with (
                pytest.MonkeyPatch.context() as patch
            ):  # the number of scored pedestrians is another one
                patch.setattr(protocol.TestSet, "check", lambda self: self)
                reader_sees = read_set(raw)
            after = predictions(Spy(), reader_sees)
            assert len(same) >= 3 and {key for key in after if key[0] == window} == same, change
            for key in same:
                np.testing.assert_equal(after[key], before[key], err_msg=f"{change}: {key}")
            if "gone" in change:  # it has an effect
                [scene] = [scene for scene in reader_sees.windows if scene.scene_id == window]
                assert protocol.scored(scene).sum() == 1


def test_predictions_do_not_depend_on_batch_size_and_order(raw: Path) -> None:
    found = read_set(raw)
    backwards = replace(found, windows=found.windows[::-1])
    for model in (ConstantVelocity(), SampledConstantVelocityConfig().build()):
        one = predictions(model, found)
        for other in (predictions(model, found, batch_size=5), predictions(model, backwards)):
            assert one.keys() == other.keys()
            assert all(np.array_equal(one[key][0], other[key][0]) for key in one)


def scored_from_text(raw: Path, folder: Path, name: str) -> dict[str, float]:
    """ADE and FDE of exported samples against the raw recordings, as AgentFormer's public eval.py reads and scores them."""
    ade, fde = [], []
    for recording in sorted((folder / "samples").iterdir()):
        rows = np.array(
            [
                line.split()
                for line in (raw / name / f"{recording.name}.txt").read_text().splitlines()
            ],
            object,
        )
        rows = rows[:, [0, 1, 13, 15]].astype(np.float32)
        for window in sorted(recording.iterdir()):
            samples = np.stack(
                [np.loadtxt(path, dtype=np.float32, ndmin=2) for path in sorted(window.iterdir())]
            )
            assert (window.name, samples[0, 0, 0]) == (
                f"frame_{int(samples[0, 0, 0]) - 1:06d}",
                samples[:, :, 0].min(),
            )
            for identity in np.unique(samples[..., 1]):
                own = samples[:, samples[0, :, 1] == identity]
                truth_rows = rows[(rows[:, 1] == identity) & np.isin(rows[:, 0], own[0, :, 0])]
                assert own.shape[1] == len(truth_rows) == F
                distance = np.linalg.norm(own[..., 2:] - truth_rows[:, 2:], axis=-1)
                ade.append(distance.mean(-1).min())
                fde.append(distance[:, -1].min())
            recorded = np.loadtxt(folder / "gt" / recording.name / f"{window.name}.txt", ndmin=2)
            assert set(map(tuple, recorded[:, :2])) == set(
                map(tuple, samples[0, :, :2].astype(float))
            )
    return {
        "ADE_20": float(np.mean(ade)),
        "FDE_20": float(np.mean(fde)),
        "num_trajectories": len(ade),
    }


def test_figures_equal_figures_of_exported_samples(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, samples = tmp_path / "new" / "figures.json", tmp_path / "samples"
    assert (
        run_command(
            "benchmark",
            "eth_ucy",
            "--data",
            raw,
            "--json",
            metrics,
            "--export",
            samples,
        )
        == 0
    )
    text, err = capsys.readouterr()
    assert err == ""
    found = json.loads(metrics.read_text())
    assert list(found) == ["constant_velocity", "constant_velocity_sampled", "crowd_eth_ucy"]
    for model, scenes in found.items():
        assert list(scenes) == [*FILES, "mean"]
        for name in FILES:
            expected = scored_from_text(raw, samples / model / name, name)
            assert {key: scenes[name][key] for key in expected} == pytest.approx(expected, abs=2e-4)
            assert (scenes[name]["num_windows"], scenes[name]["num_trajectories"]) == counted(
                raw, name
            )
        for key in (
            "ADE_20",
            "FDE_20",
            "ADE_1",
            "FDE_1",
            "JADE_20",
            "JFDE_20",
            "collision_rate_20",
        ):
            assert scenes["mean"][key] == pytest.approx(
                np.mean([scenes[name][key] for name in FILES])
            )
        row = f"{scenes['eth']['ADE_20']:.3f}/{scenes['eth']['FDE_20']:.3f}"
        assert any(line.startswith(model) and row in line for line in text.splitlines())
    plain, sampled = found["constant_velocity"]["mean"], found["constant_velocity_sampled"]["mean"]
    assert sampled["ADE_20"] < plain["ADE_20"] == plain["ADE_1"] == pytest.approx(plain["JADE_20"])
    assert (
        sampled["ADE_20"] <= sampled["JADE_20"]
        and sampled["FDE_20"] <= sampled["FDE_at_best_ADE_20"]
    )
    assert (
        not list(samples.rglob(".*"))
        and (samples / "constant_velocity" / "eth" / "samples").is_dir()
    )
    assert run_command("benchmark", "eth_ucy", "--data", raw, "--export", samples) == 1
    assert "samples: has files; give another folder" in capsys.readouterr().err


def test_a_failed_export_leaves_nothing(raw: Path, tmp_path: Path) -> None:
    test_set = read_set(raw)
    with (
        pytest.raises(ZeroDivisionError),
        protocol.sample_folder(tmp_path / "out", test_set) as add,
    ):
        add(
            next(
                protocol.outcomes(
                    predictor(ConstantVelocity()), test_set, batch_size=2, progress=False
                )
            )
        )
        assert list(tmp_path.rglob("sample_000.txt"))
        _ = 1 / 0
    assert {path.name for path in tmp_path.iterdir()} == {"raw"}


@pytest.mark.parametrize("joint", [False, True])
def test_the_20_most_probable_modes_are_scored(raw: Path, joint: bool) -> None:
    class Many(nn.Module):
        def forward(self, batch: Observation) -> Forecast:
            forecast = SampledConstantVelocityConfig(modes=25).build()(batch)
            return replace(forecast, logit=forecast.logit[:, 0]) if joint else forecast

    outcome = next(
        protocol.outcomes(predictor(Many()), read_set(raw), batch_size=2, progress=False)
    )
    forecast = Many()(outcome.batch.observation)
    for b, s in outcome.batch.observation.target_mask.nonzero().tolist():
        logit = forecast.logit[b] if joint else forecast.logit[b, s]
        kept = sorted(range(25), key=lambda mode: -logit[mode].item())[:20]
        assert torch.equal(outcome.forecast.position[b, s], forecast.position[b, s, kept])
        assert torch.equal(
            outcome.forecast.logit[b] if joint else outcome.forecast.logit[b, s], logit[kept]
        )


def test_missing_predictions_and_nan_are_errors(raw: Path) -> None:
    (outcome,) = protocol.outcomes(
        predictor(ConstantVelocity()), read_set(raw), batch_size=500, progress=False
    )
    assert protocol.score("eth", [outcome])["num_trajectories"] == protocol.COUNTS["eth"][1]
    observation, truth = outcome.batch.observation, outcome.batch.truth
    lost = truth.valid.clone()
    lost[0] = False
    with pytest.raises(TrajformerError, match="the model predicted"):
        protocol.score(
            "eth", [replace(outcome, batch=SceneBatch(observation, Truth(truth.position, lost)))]
        )
    with pytest.raises(TrajformerError, match="ADE_1 of the model is not a number"):
        forecast = replace(outcome.forecast, position=outcome.forecast.position * torch.nan)
        protocol.score("eth", [replace(outcome, forecast=forecast)])


def test_published_means_agree_with_their_rows() -> None:
    assert (
        len({name for name, _, _ in eth_ucy_table.BEST_OF_20}) == len(eth_ucy_table.BEST_OF_20) == 9
        and len(eth_ucy_table.MOST_PROBABLE) == 2
    )
    for name, cells, source in eth_ucy_table.BEST_OF_20:
        rows = [[float(number) for number in cell.split("/")] for cell in cells.split()]
        assert len(rows) == 6 and source
        assert np.mean(rows[:5], axis=0) == pytest.approx(rows[5], abs=0.0101), (
            name
        )  # all are rounded
    text = eth_ucy_table.published_table(
        {"ours": {"eth": dict.fromkeys(protocol.METRICS, 0.25)}}, {"eth": 0.5}
    )
    (agentformer,) = [line for line in text.splitlines() if line.startswith("AgentFormer")]
    assert agentformer.split()[2:8] == [
        "0.45/0.75",
        "0.14/0.22",
        "0.25/0.45",
        "0.18/0.30",
        "0.14/0.24",
        "0.23/0.39",
    ]
    ours = [line.split() for line in text.splitlines() if line.startswith("ours")]
    assert ours == [["ours", "0.250/0.250", *["-"] * 5]] * 4 + [["ours", "25.00", *["-"] * 5]]
    assert any(line.split() == ["recorded", "50.00", *["-"] * 5] for line in text.splitlines())


def checkpoint(path: Path, split: str = "eth_train") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    recipe = TrainConfig(ConstantVelocityConfig(modes=3), DataConfig(train_split=split))
    torch.save({"trajformer": describe(recipe), "state_dict": {}}, path)
    return path


def test_checkpoints_are_assigned_by_the_names_of_scenes(tmp_path: Path) -> None:
    first = [checkpoint(tmp_path / "a" / f"{name}.ckpt") for name in ("zara1", "eth")]
    second = [checkpoint(tmp_path / "b" / name / "best.ckpt") for name in ("eth", "hotel")]
    (tmp_path / "b" / "notes").mkdir()
    found = models_of([tmp_path / "a", *second])
    assert found == {
        "a": {"eth": first[1], "zara1": first[0]},
        "b": {"eth": second[0], "hotel": second[1]},
    }
    assert list(found["a"]) == ["eth", "zara1"]
    assert models_of([*first, tmp_path / "b"]) == found
    assert models_of([]) == {}
    twin = checkpoint(tmp_path / "other" / "a" / "eth.ckpt")
    assert list(models_of([tmp_path / "a", twin])) == [str(tmp_path / "a"), str(twin.parent)]
    for wrong, message in (
        ([tmp_path / "nothing"], "no checkpoint is named after one of the scenes"),
        ([tmp_path / "other"], "no checkpoint is named after one of the scenes"),
        ([tmp_path / "a", checkpoint(tmp_path / "a" / "eth" / "best.ckpt")], "is also for eth"),
    ):
        with pytest.raises(TrajformerError, match=message):
            models_of(wrong)


def test_a_model_trained_on_the_test_scene_is_refused(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint(tmp_path / "zara1.ckpt", "eth_train")
    assert run_command("benchmark", "eth_ucy", "--data", raw, "--checkpoint", path) == 1
    assert (
        "the model was trained on split 'eth_train', which contains zara1"
        in capsys.readouterr().err
    )
    assert load_predictor(path, torch.device("cpu")).trained_on == DataSpec(split="eth_train")
    model = ConstantVelocity()
    model.trained_on = DataSpec(split="pedestrians")
    next(iter(protocol.outcomes(predictor(model), read_set(raw), progress=False)))
    model.trained_on = DataSpec(split="train", period_s=0.1, num_history=20)
    with pytest.raises(
        TrajformerError,
        match=r"period_s 0\.4 and num_history 8, but the training scenes have 0\.1 and 20",
    ):
        next(iter(protocol.outcomes(predictor(model), read_set(raw), progress=False)))


def test_the_score_on_another_set_says_that_it_is_a_training_split(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("preprocess", "eth_ucy", raw, tmp_path / "store") == 0
    for trained_on, known in (
        ("eth_train", True),
        ("zara1_train", False),
        ("zara1_test", True),
        ("eth_test", False),
    ):
        path = checkpoint(tmp_path / f"{trained_on}.ckpt", trained_on)
        capsys.readouterr()
        assert (
            run_command(
                "evaluate",
                "--checkpoint",
                path,
                "--store",
                tmp_path / "store",
                "--split",
                "zara1_test",
            )
            == 0
        )
        assert ("on its training split" in capsys.readouterr().out) == known, trained_on


def test_other_recordings_are_refused(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*words: object) -> str:
        assert run_command("benchmark", "eth_ucy", *words) == 1
        text = capsys.readouterr()
        assert text.out == "" and len(text.err.splitlines()) == 1
        return text.err

    windows, trajectories = protocol.COUNTS["hotel"]
    tracks = walkers(10)
    del tracks["3.0"]
    write(raw / "hotel" / "biwi_hotel.txt", tracks)
    line = fails("--data", raw)
    assert (
        f"hotel: {windows} windows and {trajectories - windows} trajectories to score, expected"
        in line
    )
    (raw / "zara1" / "crowds_zara01.txt").unlink()
    assert "no test recording of zara1" in fails("--data", raw)
    assert "nowhere: no such folder" in fails("--data", tmp_path / "nowhere")


def test_windows_of_other_lengths_are_refused(raw: Path) -> None:
    found = read_set(raw)
    shorter = [replace(scene, num_history=7, num_future=13) for scene in found.windows]
    with pytest.raises(
        TrajformerError, match="7 observed and 13 future frames, the protocol has 8 and 12"
    ):
        replace(found, windows=shorter).check()


def test_a_store_is_also_scored_by_20_modes(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, who = tmp_path / "store", ("--model", "constant_velocity_sampled")
    assert run_command("preprocess", "eth_ucy", raw, store, "--workers", 1) == 0
    words = ("evaluate", *who, "--store", store, "--split", "eth_test")
    assert run_command(*words, "--json", tmp_path / "j", "--csv", tmp_path / "c") == 0
    found = json.loads((tmp_path / "j").read_text())
    assert [name for name in found if name.endswith("20")] == [
        "minADE20",
        "minFDE20",
        "MR20",
        "brier_minFDE20",
    ]
    assert "minFDE20" in (tmp_path / "c").read_text().splitlines()[0]
    assert "minADE20" in capsys.readouterr().out
    forecasts = tmp_path / "f.parquet"
    assert (
        run_command("predict", *who, "--store", store, "--split", "eth_test", "--out", forecasts)
        == 0
    )
    assert (
        run_command(
            "plot",
            store,
            "--forecasts",
            forecasts,
            "--random",
            1,
            "--out",
            tmp_path / "d.png",
            "--density",
        )
        == 0
    )
    assert (
        run_command("plot", store, "--split", "eth_test", "--density", "--out", tmp_path / "none")
        == 1
    )
    assert "--density needs --forecasts" in capsys.readouterr().err


@pytest.fixture(scope="module")
def scored(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The protocol without checkpoints: figures by model and scene."""
    file = tmp_path_factory.mktemp("scored") / "figures.json"
    assert run_command("benchmark", "eth_ucy", "--data", real_data / "eth_ucy", "--json", file) == 0
    return dict(json.loads(file.read_text()))


def test_constant_velocity_on_the_real_recordings(scored: dict[str, Any]) -> None:
    plain, sampled = scored["constant_velocity"], scored["constant_velocity_sampled"]
    assert {
        name: (plain[name]["num_windows"], plain[name]["num_trajectories"])
        for name in protocol.COUNTS
    } == protocol.COUNTS
    metrics = {name: (row["ADE_1"], row["FDE_1"]) for name, row in plain.items()}
    rows = {
        "eth": (1.0755, 2.2819),
        "hotel": (0.3194, 0.6142),
        "univ": (0.5242, 1.1651),
        "zara1": (0.4272, 0.9524),
    }
    rows |= {"zara2": (0.3239, 0.7244), "mean": (0.5340, 1.1476)}
    np.testing.assert_allclose([metrics[name] for name in rows], [*rows.values()], atol=1e-4)
    assert (sampled["mean"]["ADE_20"], sampled["mean"]["FDE_20"]) == pytest.approx(
        (0.418, 0.866), abs=1e-3
    )
    assert plain["univ"]["collision_rate_20"] == pytest.approx(0.2022, abs=1e-4)


def test_the_weights_of_the_package_give_the_documented_metrics(scored: dict[str, Any]) -> None:
    plain, crowd = scored["constant_velocity"], scored["crowd_eth_ucy"]
    assert (crowd["mean"]["ADE_20"], crowd["mean"]["FDE_20"]) == pytest.approx(
        (0.197, 0.321), abs=2e-3
    )
    assert (crowd["mean"]["ADE_1"], crowd["mean"]["FDE_1"]) == pytest.approx(
        (0.477, 1.004), abs=2e-3
    )
    for scene, counts in protocol.COUNTS.items():
        assert (crowd[scene]["num_windows"], crowd[scene]["num_trajectories"]) == counts
        assert crowd[scene]["FDE_1"] < plain[scene]["FDE_1"]
        assert crowd[scene]["ADE_1"] < plain[scene]["ADE_1"]
