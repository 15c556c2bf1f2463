"""`trajformer evaluate --protocol nuscenes|sdd`: from raw files to the published table with rows of models."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    import torch
    from jsonargparse import Namespace

    from data_prep.reader import Input, Reader
    from trajformer.models.forecaster import Predictor
    from trajformer.scenes.scene import Scene

NAMES = ("nuscenes", "sdd")


@dataclass(frozen=True)
class RawScenes:
    """The scenes of a split, each read from raw files when it is needed."""

    reader: Reader
    root: Path
    split: str
    inputs: list[Input]

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Scene:
        return self.reader.read(self.inputs[index], self.split, self.root)


def evaluate(data: Path, checkpoints: Sequence[Path], args: Namespace) -> None:
    """Score constant velocity and checkpoints on the test split, and print the published table with these rows.

    `args` has the options `protocol`, `model`, `accelerator`, `batch_size`, `json` and `export` of `trajformer evaluate`.
    """
    from data_prep.readers.nuscenes_prediction import NuscenesPrediction
    from data_prep.readers.sdd import Sdd
    from trajformer.evaluation.evaluate import run
    from trajformer.evaluation.protocols import nuscenes, sdd
    from trajformer.evaluation.protocols.benchmark import score, table
    from trajformer.recipes.checkpoint import pick_device

    is_nuscenes = args.protocol == "nuscenes"
    benchmark = nuscenes.BENCHMARK if is_nuscenes else sdd.BENCHMARK
    if args.export is not None and (not is_nuscenes or len(checkpoints) > 1):
        raise TrajformerError("--export is for --protocol nuscenes or eth_ucy; for nuscenes with at most one checkpoint")
    check_outputs(args, json="json", export="json")
    scenes = _open(data, NuscenesPrediction() if is_nuscenes else Sdd(), benchmark.split)
    predictors = _predictors(args, checkpoints, pick_device(args.accelerator))
    if wrong := [label for label, predictor in predictors.items() if predictor.trained_on.split == benchmark.split]:
        raise TrajformerError(f"{wrong[0]}: the model was trained on split '{benchmark.split}', which is scored")
    rows = {}
    for label, predictor in predictors.items():
        if bars():
            tqdm.write(label, file=sys.stderr)
        results = run(predictor, scenes, batch_size=args.batch_size, progress=bars())
        if args.export is not None and label == list(predictors)[-1 if checkpoints else 0]:
            results = nuscenes.write_challenge(args.export, results)
        rows[label] = score(benchmark, results)
    print(table(benchmark, rows))
    if args.json is not None:
        write_atomically(args.json, json.dumps(rows, indent=1) + "\n")


def _open(data: Path, reader: Reader, split: str) -> RawScenes:
    if not data.is_dir():
        raise TrajformerError(f"{data}: no such folder")
    if split not in reader.splits(data):
        raise TrajformerError(f"{data}: no split '{split}' (expected {reader.layout})")
    return RawScenes(reader, data, split, reader.inputs(data, split))


def _predictors(args: Namespace, checkpoints: Sequence[Path], device: torch.device) -> dict[str, Predictor]:
    """The baselines and the models of checkpoints by their label."""
    from trajformer.data.sample import BatchConfig
    from trajformer.models.constant_velocity import ConstantVelocityConfig
    from trajformer.models.forecaster import Predictor
    from trajformer.recipes.checkpoint import load_predictor

    if args.model not in (None, "constant_velocity"):
        baselines = {args.model: load_predictor(args.model, device)}
    else:
        models = {"constant_velocity": ConstantVelocityConfig()}
        if args.protocol == "nuscenes":
            models["constant_velocity_yaw"] = ConstantVelocityConfig(along_heading=True)
        baselines = {name: Predictor(config.build().eval(), BatchConfig(), device) for name, config in models.items()}
    return baselines | {str(path): load_predictor(path, device) for path in checkpoints}
