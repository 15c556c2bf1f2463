"""The GPU report on the CPU, without the packages that a machine with a GPU may lack."""

import json
from pathlib import Path

import gpu_report
import pytest
import torch
from support.processes import ROOT, environment, run_python

from trajformer.recipes.choices import MODELS

PROGRAM = """
import sys
for name in ("av2", "jsonargparse", "tensorboard", "ray", "sentencepiece", "pycocotools"):
    sys.modules[name] = None
import gpu_report
from dataclasses import replace
models = ("constant_velocity", "mmtransformer", "agentformer_sampler")
gpu_report.SMALL = replace(gpu_report.SMALL, models=models, scenes=4, batch=2, latency=(1,), repeats=1, matrix=64, workers=(0,))
gpu_report.main()
"""


def test_all_tables_are_measured_without_optional_packages(tmp_path: Path) -> None:
    words = ("-c", PROGRAM, "--small", "--out", tmp_path / "R.json")
    done = run_python(*words, env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tools'}"))
    assert done.returncode == 0, done.stdout + done.stderr
    tables = json.loads((tmp_path / "R.json").read_text())["rows"]
    assert list(tables) == list(gpu_report.TABLES) and done.stdout.count("\n| --- |") == len(tables)
    models = [[row["model"] for row in rows] for rows in tables.values()]
    pair, tasks = ["mmtransformer", "agentformer_sampler"], ["detection", "translation"]
    assert models[:2] == [["constant_velocity", *pair], sorted(pair * 2, reverse=True)]
    assert models[2:] == [["constant_velocity", *pair], pair, sorted(tasks * 2), ["mmtransformer"]]
    numbers = [value for rows in tables.values() for row in rows for value in row.values() if isinstance(value, float)]
    assert len(numbers) > 40 and min(numbers) >= 0.0 and all(row["equal"] == "yes" for row in tables["Parity with the CPU"])


def test_all_models_are_in_the_report_and_an_error_is_a_row(tmp_path: Path) -> None:
    assert set(MODELS) <= set(gpu_report.Sizes().models)
    run = gpu_report.Run(torch.device("cpu"), None, gpu_report.SMALL)

    def fail(run: gpu_report.Run, name: str) -> None:
        raise RuntimeError(f"out of memory\nin {name}")

    assert list(gpu_report.measured(fail, run, "crowd")) == [{"model": "crowd", "error": "RuntimeError: out of memory in crowd"}]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_models_on_a_gpu_equal_those_on_the_cpu(tmp_path: Path) -> None:
    gpu_report.TABLES = {name: table for name, table in gpu_report.TABLES.items() if name == "Parity with the CPU"}
    assert gpu_report.report(tmp_path / "R.json", torch.device("cuda"), gpu_report.SMALL, tmp_path)
