"""The built wheel contains everything that a training and an evaluation need."""

import shutil
import zipfile
from pathlib import Path

import pytest
from support.processes import ROOT, environment, run_python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked wheel, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    no_cache = shutil.ignore_patterns("__pycache__")
    for name in ("trajformer", "data_prep", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=no_cache)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run_python("-m", "pip", "wheel", *options, source, check=True)
    [path] = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_has_types_recipes_and_weights(wheel: Path) -> None:
    package = wheel / "trajformer"
    assert (package / "py.typed").is_file() and (package / "__init__.pyi").is_file()
    configs = ROOT / "configs"
    library = package / "recipes/library"
    names = {path.relative_to(configs) for path in configs.rglob("*.yaml")}
    assert {path.relative_to(library) for path in library.rglob("*.yaml")} == names
    assert len(list((package / "recipes/weights/crowd_eth_ucy").glob("*.safetensors"))) == 5


def test_a_recipe_is_trained_by_name_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """With the modules and recipes of the wheel only, and without optional packages."""
    stores = "--data.train store --data.val store --data.limit_train 2"
    commands = [
        "synthesize raw --scenes 4 --workers 1",
        "preprocess argoverse2 raw store --workers 1",
        "predict --model constant_velocity --store store --out f.parquet",
        f"train --config demo {stores} --trainer.epochs 1 --out run",
    ]
    lines = [
        "import sys",
        "for name in ('av2', 'torch_geometric', 'ray', 'tensorboard'): sys.modules[name] = None",
        "import trajformer.cli as cli",
        "print(cli.__file__)",
        f"for words in {commands}: assert cli.main(words.split()) == 0",
    ]
    program = "\n".join(lines)
    done = run_python("-c", program, cwd=tmp_path, env=environment(PYTHONPATH=str(wheel)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(wheel))
    assert done.stdout.endswith(f"{Path('run', 'best.ckpt')}\n")
    assert (tmp_path / "run" / "best.ckpt").is_file()
