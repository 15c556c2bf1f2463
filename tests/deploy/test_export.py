"""Exported models: parity for other sizes and real scenes, metadata, damage, runs without torch."""

import shutil
import subprocess
from dataclasses import replace
from os import environ
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cpp.write_inputs import write_inputs
from support.models import FUTURE, MMTRANSFORMER, MODEL_CONFIGS, SE2FORMER
from support.processes import ROOT, run_python

from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.deploy.example_scene import example_scene
from trajformer.deploy.export import export_model, trace_model, write_programs
from trajformer.deploy.exported_model import ExportedModel
from trajformer.deploy.latency import measure, runtimes_of, table
from trajformer.deploy.runtime import ExportedForecaster
from trajformer.errors import TrajformerError
from trajformer.models.forecaster import Forecaster
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import DataSpec
from trajformer.testing.models import build_random

SPEC = DataSpec(unit="m", period_s=0.1, num_history=10, num_future=FUTURE)
# The tolerances of the two formats, in metres, in addition to some roundings of float32.
ROUNDING = 5e-7
TOLERANCE = {"pt2": 1e-5, "onnx": 1e-4}
SIZES = [  # agents and lanes of the scenes of a batch; none of them is an example of tracing
    [(1, 0)],
    [(1, 1)],
    [(30, 200)],
    [(3, 20), (12, 90)],
    [(60, 700)],  # more than 512 tokens
    [(5, 30), (40, 600)],  # on both sides of 512 tokens
]


class Export(NamedTuple):
    """A model, its file, and the file as a forecaster: reading a program takes seconds."""

    model: Forecaster
    path: Path
    forecaster: ExportedForecaster


Exports = dict[tuple[str, str], Export]
# One layer of each kind has all operations.
ONE = (1, 1)
SMALL = {
    "se2former": SE2FORMER,
    "mmtransformer": replace(MMTRANSFORMER, motion_layers=ONE, map_layers=ONE, social_layers=ONE),
}


def trained(config: object) -> Forecaster:
    model = build_random(config).eval()
    model.trained_on = SPEC
    model.batch_config = BatchConfig(polyline_points=8, polyline_length_m=40.0)
    return model


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """Models and their files; tracing takes seconds, so each model is traced once."""
    folder = tmp_path_factory.mktemp("exports")
    result = {}
    for name, config in SMALL.items():
        model = trained(config)
        programs = trace_model(model)
        for suffix in TOLERANCE:
            path = folder / f"{name}.{suffix}"
            exported = write_programs(model, programs, path)
            result[name, suffix] = Export(model, path, exported.forecaster)
    return result


@pytest.fixture(scope="session")
def onnx(exports: Exports) -> Export:
    return exports["se2former", "onnx"]


@torch.no_grad()
def assert_parity(model: Forecaster, exported: ExportedForecaster, scenes: list[Scene]) -> None:
    """Positions in the city frame and probabilities of all agents agree with the model."""
    batch = collate(scenes, replace(model.batch_config, targets="all"))
    forecast = model(batch.observation)
    expected = forecast.in_city_frame(batch.observation)
    probability = forecast.probability().numpy()
    tolerance = TOLERANCE[exported.path.suffix.removeprefix(".")]
    for index, result in enumerate(exported.forecast_scenes(scenes)):
        count = len(result.agent_id)
        position = expected[index, :count]
        # Rotations mix coordinates, so the distance of a point from the origin counts.
        allowed = tolerance + ROUNDING * np.linalg.norm(position, axis=-1, keepdims=True)
        assert (np.abs(result.position - position) <= allowed).all()
        np.testing.assert_allclose(result.probability, probability[index, :count], atol=1e-5)


@pytest.mark.parametrize("suffix", TOLERANCE)
@pytest.mark.parametrize("name", SMALL)
def test_scenes_of_sizes_that_tracing_did_not_see(exports: Exports, name: str, suffix: str) -> None:
    model, _, exported = exports[name, suffix]
    for seed, sizes in enumerate(SIZES):
        scenes = [example_scene(SPEC, *size, seed=seed + part) for part, size in enumerate(sizes)]
        assert_parity(model, exported, scenes)


def test_a_kept_map_gives_the_forecast_of_a_fresh_one(onnx: Export) -> None:
    exported = onnx.forecaster
    scene = example_scene(SPEC, 8, 40)
    # The same world around another origin, as in the next moment of a live system.
    moved = replace(
        scene,
        origin=scene.origin + np.array([30.0, -10.0]),
        position=scene.position - np.float32([30, -10]) * scene.valid[..., None],
        point=scene.point - np.float32([30, -10]),
    )
    lanes = exported.encode_map(scene)
    kept = exported.forecast(moved, lanes)
    fresh = exported.forecast(moved)
    np.testing.assert_allclose(kept.position, fresh.position, atol=1e-4)
    np.testing.assert_allclose(kept.probability, fresh.probability, atol=1e-5)


def test_a_scene_without_agents_to_forecast(onnx: Export) -> None:
    scene = example_scene(SPEC, 3, 10)
    unseen = np.zeros_like(scene.valid)
    empty = replace(
        scene,
        valid=unseen,
        position=scene.position * 0,
        heading=scene.heading * 0,
        velocity=scene.velocity * 0,
    )
    assert onnx.forecaster.forecast(empty).agent_id == ()


def test_an_exported_file_is_a_forecaster(onnx: Export) -> None:
    model = onnx.model
    exported = ExportedModel(onnx.forecaster)
    batch = collate([example_scene(SPEC, 6, 30)], exported.batch_config).observation
    expected = model(batch)
    forecast = exported(batch).check(batch)
    torch.testing.assert_close(
        forecast.in_batch_frame(), expected.in_batch_frame(), rtol=0, atol=1e-4
    )
    torch.testing.assert_close(forecast.probability(), expected.probability(), atol=1e-5, rtol=0)


def test_metadata_name_clock_inputs_and_weights(onnx: Export) -> None:
    metadata = onnx.forecaster.metadata
    assert (metadata.model, metadata.graphs) == ("SE2Former", ("map", "forecast"))
    assert metadata.spec == SPEC
    assert (
        metadata.inputs["position"]
        == "float32 [B, A, 10, 2] m, frame of the scene, 0 where not valid"
    )
    assert metadata.agent_types[1] == "VEHICLE"
    assert len(metadata.weights_sha256) == 64


def test_scenes_of_another_clock_are_an_error(onnx: Export) -> None:
    scene = example_scene(replace(SPEC, period_s=0.2), 3, 10)
    with pytest.raises(TrajformerError, match=r"period_s 0\.2, but the exported model has 0\.1"):
        onnx.forecaster.forecast(scene)


@pytest.mark.parametrize("suffix", TOLERANCE)
def test_damaged_and_foreign_files_are_an_error(
    exports: Exports, tmp_path: Path, suffix: str
) -> None:
    path = exports["mmtransformer", suffix].path
    file = tmp_path / path.name
    content = path.read_bytes()
    for damaged in (b"", content[:1000], content[: len(content) // 2], b"\0" * 1000):
        file.write_bytes(damaged)
        with pytest.raises(TrajformerError, match=f"^{file}: ") as error:
            ExportedForecaster(file)
        assert "\n" not in str(error.value)


def test_graphs_of_different_weights_are_an_error(exports: Exports, tmp_path: Path) -> None:
    shutil.copy(exports["se2former", "onnx"].path, tmp_path / "a.onnx")
    shutil.copy(exports["mmtransformer", "onnx"].path, tmp_path / "a.map.onnx")
    with pytest.raises(TrajformerError, match="has other weights"):
        ExportedForecaster(tmp_path / "a.onnx")
    (tmp_path / "a.map.onnx").unlink()
    with pytest.raises(TrajformerError, match=r"a\.map\.onnx: cannot be read"):
        ExportedForecaster(tmp_path / "a.onnx")


def test_models_that_cannot_be_exported_give_one_line(tmp_path: Path) -> None:
    model = trained(MODEL_CONFIGS["constant-velocity-sampled"])  # it draws random numbers
    with pytest.raises(TrajformerError, match="Velocity cannot be exported: ") as error:
        export_model(model, tmp_path / "a.pt2")
    assert "\n" not in str(error.value)
    model = trained(SE2FORMER)
    model.trained_on = DataSpec()
    with pytest.raises(TrajformerError, match="the clock of its training scenes is unknown"):
        export_model(model, tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())


WITHOUT_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "lightning", "pandas", "scipy", "matplotlib"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from pathlib import Path
from trajformer.deploy.runtime import ExportedForecaster
from trajformer.deploy.example_scene import example_scene
forecaster = ExportedForecaster(sys.argv[1])
forecast = forecaster.forecast(example_scene(forecaster.metadata.spec, 4, 12, seed=3))
print(forecast.position.shape, float(forecast.position.sum()))
"""


def test_forecasts_without_torch(onnx: Export) -> None:
    done = run_python("-c", WITHOUT_TORCH, onnx.path)
    assert done.returncode == 0, done.stderr
    scene = example_scene(SPEC, 4, 12, seed=3)
    expected = onnx.forecaster.forecast(scene).position
    assert done.stdout.split(") ")[0] == str(expected.shape)[:-1]
    assert float(done.stdout.split(") ")[1]) == pytest.approx(expected.sum(), abs=0.01)


def test_real_scenes(exports: Exports, argoverse2_scenes: list[Scene]) -> None:
    scenes = []
    for scene in argoverse2_scenes[:2]:  # cut to the clock of the small models
        steps = slice(scene.num_history - 10, scene.num_history)
        observed = {
            name: getattr(scene, name)[:, steps]
            for name in ("position", "heading", "velocity", "valid")
        }
        scenes.append(
            replace(
                scene,
                num_history=10,
                num_future=FUTURE,
                light_lane=scene.light_lane[:0],
                light_state=scene.light_state[:0],
                **observed,
            )
        )
    for model, _, exported in exports.values():
        for scene in scenes:
            assert_parity(model, exported, [scene])


def test_latency_prints_a_row_for_each_size_and_use_of_the_map(onnx: Export) -> None:
    runtimes = runtimes_of(onnx.path, onnx.model, ["eager"]) | runtimes_of(onnx.path, None, [])
    rows = measure(runtimes, [3], [20, 40], calls=2)
    assert all(0 < row.median_ms <= row.p99_ms for row in rows)
    lines = table(rows).splitlines()
    assert lines[0].startswith("| agents | pieces of lanes | map | preparation, ms | eager, ms |")
    assert len(lines) == 2 + 4


HEADERS = Path(environ.get("ONNXRUNTIME_INCLUDE", "/usr/include/onnxruntime"))


def test_the_program_in_cpp(onnx: Export, tmp_path: Path) -> None:
    """Builds the example and compares its forecast; needs a compiler and onnxruntime's headers."""
    compiler = shutil.which("g++")
    if compiler is None or not (HEADERS / "onnxruntime_c_api.h").is_file():
        pytest.skip("no g++, or no onnxruntime_c_api.h in ONNXRUNTIME_INCLUDE")
    import onnxruntime

    [library] = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)  # its name for the loader
    program = tmp_path / "forecast"
    source = ROOT / "tools/cpp/forecast.cpp"
    words = [compiler, "-std=c++17", "-I", HEADERS, source, library, "-o", program]
    subprocess.run([*words, f"-Wl,-rpath,{tmp_path}"], check=True)

    exported = onnx.forecaster
    scene = example_scene(SPEC, 5, 30)
    write_inputs(exported.inputs(scene), tmp_path / "inputs.bin")
    words = [program, onnx.path, tmp_path / "inputs.bin"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    rows = np.array([line.split() for line in done.stdout.splitlines()], np.float64)
    forecast = exported.forecast(scene)
    count, modes = forecast.probability.shape
    position = rows[:, 3:].reshape(count, modes, FUTURE, 2)
    np.testing.assert_allclose(position, forecast.position - scene.origin, atol=1e-3)
    np.testing.assert_allclose(rows[:, 2].reshape(count, modes), forecast.probability, atol=1e-5)
