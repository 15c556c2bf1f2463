"""`trajformer evaluate --protocol NAME`: from raw files to the published table with rows of models."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs
from trajformer.errors import TrajformerError
from trajformer.recipes.names import WEIGHTS
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    import torch
    from jsonargparse import Namespace

    from data_prep.reader import Input, Reader
    from trajformer.evaluation.protocols.eth_ucy import TestSet
    from trajformer.evaluation.protocols.interaction import CaseSet
    from trajformer.models.forecaster import Predictor
    from trajformer.scenes.scene import Scene

PROTOCOLS = ("eth_ucy", "interaction", "nuscenes", "sdd")
CROWD_WEIGHTS = WEIGHTS / "crowd_eth_ucy"
_FILES = (
    "{}.ckpt",
    "{}.safetensors",
    "{}/best.ckpt",
)  # checkpoint of a scene of ETH/UCY in the folder of a model
_CASES = "val"  # the split of INTERACTION that is scored


def evaluate(data: Path, checkpoints: Sequence[Path], args: Namespace) -> None:
    """Score models by the rules of a protocol, and print them next to the published ones.

    `args` has the options of `trajformer evaluate`: `protocol`, `model`, `joint`, `accelerator`, `batch_size`, `json`, `export`.
    """
    from trajformer.recipes.checkpoint import pick_device

    if args.export is not None and (
        args.protocol == "sdd" or (args.protocol == "nuscenes" and len(checkpoints) > 1)
    ):
        raise TrajformerError(
            "--export is for --protocol eth_ucy, interaction and nuscenes (with at most one checkpoint)"
        )
    if args.protocol == "interaction" and checkpoints and args.model:
        raise TrajformerError("give either --checkpoint CKPT or --model constant_velocity")
    check_outputs(args, json="json", export="json" if args.protocol == "nuscenes" else "folder")
    if not data.is_dir():
        raise TrajformerError(f"{data}: no such folder")
    score = {"eth_ucy": _eth_ucy, "interaction": _interaction}.get(args.protocol, _benchmark)
    table, metrics = score(data, checkpoints, args, pick_device(args.accelerator))
    print(table)
    if args.json is not None:
        write_atomically(args.json, json.dumps(metrics, indent=1) + "\n")


def _constant_velocity(device: torch.device, **options: bool) -> Predictor:
    """Constant velocity with one mode."""
    from trajformer.data.sample import BatchConfig
    from trajformer.models.constant_velocity import ConstantVelocityConfig
    from trajformer.models.forecaster import Predictor

    return Predictor(
        ConstantVelocityConfig(**options).build().to(device).eval(), BatchConfig(), device
    )


def _announce(label: str) -> None:
    if bars():
        tqdm.write(label, file=sys.stderr)


def _export_folder(args: Namespace, label: str) -> Path | None:
    """The folder for the files of a model, if there is one."""
    return None if args.export is None else args.export / label.strip("./").replace("/", "-")


def _refuse_training_split(predictors: dict[str, Predictor], split: str) -> None:
    if wrong := [
        label for label, predictor in predictors.items() if predictor.trained_on.split == split
    ]:
        raise TrajformerError(
            f"{wrong[0]}: the model was trained on split '{split}', which is scored"
        )


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


def _benchmark(
    data: Path, checkpoints: Sequence[Path], args: Namespace, device: torch.device
) -> tuple[str, Any]:
    """nuScenes prediction and Stanford Drone: constant velocity and checkpoints on the one test split."""
    from data_prep.readers.nuscenes_prediction import NuscenesPrediction
    from data_prep.readers.sdd import Sdd
    from trajformer.evaluation.evaluate import run
    from trajformer.evaluation.protocols import nuscenes, sdd
    from trajformer.evaluation.protocols.benchmark import score, table
    from trajformer.recipes.checkpoint import load_predictor

    is_nuscenes = args.protocol == "nuscenes"
    benchmark, reader = (
        (nuscenes.BENCHMARK, NuscenesPrediction()) if is_nuscenes else (sdd.BENCHMARK, Sdd())
    )
    split = benchmark.split
    if split not in reader.splits(data):
        raise TrajformerError(f"{data}: no split '{split}' (expected {reader.layout})")
    scenes = RawScenes(reader, data, split, reader.inputs(data, split))
    if args.model not in (None, "constant_velocity"):
        predictors = {args.model: load_predictor(args.model, device)}
    else:
        predictors = {"constant_velocity": _constant_velocity(device)}
        if is_nuscenes:
            predictors["constant_velocity_yaw"] = _constant_velocity(device, along_heading=True)
    exported = str(checkpoints[0]) if checkpoints else next(iter(predictors))
    predictors |= {str(path): load_predictor(path, device) for path in checkpoints}
    _refuse_training_split(predictors, split)
    rows = {}
    for label, predictor in predictors.items():
        _announce(label)
        results = run(predictor, scenes, batch_size=args.batch_size, progress=bars())
        if args.export is not None and label == exported:
            results = nuscenes.write_challenge(args.export, results)
        rows[label] = score(benchmark, results)
    return table(benchmark, rows), rows


def _interaction(
    data: Path, checkpoints: Sequence[Path], args: Namespace, device: torch.device
) -> tuple[str, Any]:
    """The validation cases: constant velocity or trained models. `export` receives the files `<model>/<location>_sub.csv`."""
    from trajformer.evaluation.protocols.interaction import (
        case_metrics,
        outcomes,
        summarize,
        table,
        write_challenge_file,
    )
    from trajformer.recipes.checkpoint import load_predictor

    predictors = {str(path): load_predictor(path, device, joint=args.joint) for path in checkpoints}
    if not checkpoints:
        name = args.model or "constant_velocity"
        one_mode = _constant_velocity(device, recorded=True)
        predictors[name] = one_mode if name == "constant_velocity" else load_predictor(name, device)
    _refuse_training_split(predictors, _CASES)
    cases: dict[str, dict[str, Any]] = {label: {} for label in predictors}  # by model and location
    for case_set in read_cases(data):
        for label, predictor in predictors.items():
            results = list(
                outcomes(predictor, case_set, batch_size=args.batch_size, progress=bars())
            )
            cases[label][case_set.split] = list(map(case_metrics, results))
            if folder := _export_folder(args, label):
                write_challenge_file(folder / f"{case_set.split}_sub.csv", results)
    metrics = {label: summarize(by_location) for label, by_location in cases.items()}
    return table(metrics), metrics


def read_cases(data: Path) -> Iterator[CaseSet]:
    """The validation cases of each location (TrajformerError: no cases, or a case cannot be used)."""
    from data_prep.readers.interaction.reader import Interaction
    from trajformer.evaluation.protocols.interaction import CaseSet

    reader = Interaction()
    if _CASES not in reader.splits(data):
        raise TrajformerError(f"{data}: no validation cases (expected {reader.layout})")
    for path, items in groupby(reader.inputs(data, _CASES), lambda item: item.path):
        cases = []
        for item in tqdm(
            list(items),
            desc=f"read {path.stem}",
            unit="case",
            disable=not bars(),
            dynamic_ncols=True,
        ):
            cases.append(reader.read(item, _CASES, data).validate())
        yield CaseSet(cases[0].city, data, cases)


def _eth_ucy(
    data: Path, checkpoints: Sequence[Path], args: Namespace, device: torch.device
) -> tuple[str, Any]:
    """Five leave-one-out scenes: constant velocity, plain and sampled, and models with a checkpoint for each scene.

    By default these are the included weights of the crowd forecaster.
    """
    from trajformer.evaluation.protocols.eth_ucy import COUNTS, recorded_collision_rate, table
    from trajformer.recipes.checkpoint import UNTRAINED, load_predictor

    models = models_of(checkpoints or [CROWD_WEIGHTS])
    sets = {test_set.name: test_set for test_set in read_test_sets(data)}
    sources: dict[str, dict[str, Path | str]] = {
        name: dict.fromkeys(COUNTS, name) for name in UNTRAINED
    }
    sources |= {label: dict(files) for label, files in models.items()}
    results: dict[
        str, dict[str, dict[str, float]]
    ] = {}  # figures by model, by scene or "mean", and by name
    for label, source_of in sources.items():
        _announce(label)
        metrics = {}
        for name, source in source_of.items():
            predictor = (
                _constant_velocity(device)
                if source == "constant_velocity"
                else load_predictor(source, device)
            )
            metrics[name] = _score(
                predictor, sets[name], _export_folder(args, label), args.batch_size
            )
        if metrics.keys() == COUNTS.keys():  # means of the figures, sums of the counts
            total = {name: sum(row[name] for row in metrics.values()) for name in metrics["eth"]}
            metrics["mean"] = {
                name: value / (1 if name.startswith("num_") else 5) for name, value in total.items()
            }
        results[label] = metrics
    recorded = {name: recorded_collision_rate(test_set) for name, test_set in sets.items()}
    return table(results, recorded | {"mean": sum(recorded.values()) / len(recorded)}), results


def _score(
    predictor: Predictor, test_set: TestSet, folder: Path | None, batch_size: int
) -> dict[str, float]:
    """The figures of a model on a scene. Its samples are written to a folder below `folder`, unless it is None."""
    from trajformer.evaluation.protocols.eth_ucy import outcomes, sample_folder, score

    forecasts = outcomes(predictor, test_set, batch_size=batch_size, progress=bars())
    if folder is None:
        return score(test_set.name, forecasts)
    with sample_folder(folder / test_set.name, test_set) as write:
        return score(test_set.name, map(write, forecasts))


def read_test_sets(data: Path) -> list[TestSet]:
    """The test windows of the five scenes (TrajformerError: one is missing, unusable, or not the published version)."""
    from data_prep.readers.eth_ucy import LAYOUT, EthUcy
    from data_prep.readers.recordings import read_recording
    from trajformer.evaluation.protocols.eth_ucy import COUNTS, TestSet

    reader = EthUcy()
    splits = reader.splits(data)
    if missing := [name for name in COUNTS if f"{name}_test" not in splits]:
        raise TrajformerError(
            f"{data}: no test recording of {missing[0]} (expected {reader.layout})"
        )
    sets = []
    for name in tqdm(COUNTS, desc="read", unit="set", disable=not bars(), dynamic_ncols=True):
        split = f"{name}_test"
        inputs = reader.inputs(data, split)
        windows = [reader.read(item, split, data) for item in inputs]
        step = {
            path.stem: read_recording(path, LAYOUT).interval
            for path in {item.path for item in inputs}
        }
        sets.append(TestSet(name, data, windows, step).check())
    return sets


def models_of(checkpoints: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Checkpoints by the label of their model and by scene.

    A folder holds the checkpoints of one model: `eth.ckpt` or `eth/best.ckpt` is for the scene eth, and so on; scenes may be
    missing. Files are recognized by the same names, and files of one folder belong to one model. Raises TrajformerError: no
    checkpoint is named after a scene, or there are two checkpoints for one scene.
    """
    from trajformer.evaluation.protocols.eth_ucy import COUNTS
    from trajformer.recipes.checkpoint import UNTRAINED

    by_folder: dict[Path, dict[str, Path]] = {}
    for path in checkpoints:
        if path.is_dir():
            files = [
                (scene, path / name.format(scene), path) for scene in COUNTS for name in _FILES
            ]
            files = [entry for entry in files if entry[1].is_file()]
        else:
            named = path.with_suffix("") if path.stem in COUNTS else path.parent  # after a scene
            files = [(named.name, path, named.parent)] if named.name in COUNTS else []
        if not files:
            reason = f"no checkpoint is named after one of the scenes {', '.join(COUNTS)}"
            raise TrajformerError(f"{path}: {reason} (eth.ckpt, eth/best.ckpt ...)")
        for scene, file, folder in files:
            other = by_folder.setdefault(folder, {}).setdefault(scene, file)
            if other != file:
                raise TrajformerError(f"{file}: {other} is also for {scene}")
    names = [folder.resolve().name for folder in by_folder]
    unique = len(set(names) | set(UNTRAINED)) == len(names) + len(UNTRAINED) and all(names)
    labels = names if unique else [str(folder) for folder in by_folder]
    ordered = [
        {scene: files[scene] for scene in COUNTS if scene in files} for files in by_folder.values()
    ]
    return dict(zip(labels, ordered, strict=True))
