"""The split of forecasts, and commands without optional packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.scenes import make_scene

from trajformer.cli.pictures import split_of
from trajformer.evaluation.forecast_file import read_forecasts
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard


def test_plot_selects_the_split_of_the_forecasts(tmp_path: Path) -> None:
    """Ids of Argoverse 1 recur between splits, so one common scene does not decide."""
    for split, ids in {"test_obs": ("1", "2"), "val": ("1", "3", "4")}.items():
        scenes = [make_scene(3, seed=int(i), scene_id=i) for i in ids]
        write_shard(shard_path(tmp_path, split, 0), scenes, ShardInfo(source="test", split=split))
    assert split_of(tmp_path, ["1", "3", "4"]) == "val"
    assert split_of(tmp_path, ["1", "2"]) == "test_obs"
    assert split_of(tmp_path, ["1"]) == "val"


def test_commands_run_without_optional_packages(tmp_path: Path) -> None:
    """Preparation and forecasting need neither av2, ray nor TensorBoard."""
    program = (
        "import sys\n"
        "for name in ('av2', 'torch_geometric', 'ray', 'tensorboard'):\n"
        "    sys.modules[name] = None  # importing it raises ImportError\n"
        "from trajformer.cli import main\n"
        "raw, store, out = sys.argv[1:]\n"
        "assert main(['synthesize', raw, '--scenes', '3', '--workers', '1']) == 0\n"
        "assert main(['preprocess', 'argoverse2', raw, store, '--workers', '1']) == 0\n"
        "assert main(['predict', '--model', 'constant_velocity', '--store', store, '--out', out]) == 0\n"
    )
    out = tmp_path / "forecasts.parquet"
    arguments = [sys.executable, "-c", program, str(tmp_path / "raw"), str(tmp_path / "store"), str(out)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert read_forecasts(out)


def test_worker_processes_of_a_preparation_do_not_import_torch() -> None:
    program = (
        "import sys, data_prep.readers.names, data_prep.engine.tasks; assert not {'torch', 'pandas', 'scipy'} & set(sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
