"""Benchmarks from raw files to tables: what `trajformer benchmark` does.

The rules of each benchmark are in `trajformer/evaluation/protocols/`. A function `score_NAME` reads
the raw files, runs the models of the command line and returns the table of the benchmark with their
metrics.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from data_prep.reader import Input, Reader
from data_prep.readers.eth_ucy import LAYOUTS, EthUcy
from data_prep.readers.interaction.reader import Interaction
from data_prep.readers.nuscenes.reader import NuscenesPrediction
from data_prep.readers.recordings import read_recording
from data_prep.readers.sdd import Sdd
from data_prep.readers.waymo.reader import Waymo
from trajformer.cli.files import bars
from trajformer.data.sample import BatchConfig
from trajformer.errors import SceneError, TrajformerError
from trajformer.evaluation import evaluate
from trajformer.evaluation.forecast_file import TrackForecast, read_forecasts
from trajformer.evaluation.protocols import (
    benchmark,
    eth_ucy,
    eth_ucy_table,
    interaction,
    interaction_challenge,
    interaction_table,
    nuscenes,
    sdd,
    waymo,
    waymo_submission,
)
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import UNTRAINED, load_predictor
from trajformer.recipes.names import WEIGHTS
from trajformer.scenes.manifest import store_splits
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore

CONSTANT_VELOCITY = "constant_velocity"
CROWD_WEIGHTS = WEIGHTS / "crowd_eth_ucy"
CHECKPOINT_FILES = ("{}.ckpt", "{}.safetensors", "{}/best.ckpt")  # of a set of ETH/UCY
CASES = "val"  # the split of INTERACTION that is scored

Table = tuple[str, Any]  # the printed table, and the metrics of the models for --json
Metrics = dict[str, float]


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
        item = self.inputs[index]
        if item.problem:
            raise SceneError(item.problem)
        return self.reader.read(item, self.split, self.root)


# ---- nuScenes prediction and Stanford Drone: one test split -------------------------------------


def score_nuscenes(args: Namespace, device: torch.device) -> Table:
    """Constant velocity, also along the heading, and checkpoints on the official val split."""
    checkpoints = args.checkpoint or []
    if args.export is not None and len(checkpoints) > 1:
        raise TrajformerError("--export is for at most one checkpoint")
    reader = NuscenesPrediction(driven_paths=args.driven_paths)
    scenes = _read_split(reader, args.data, nuscenes.BENCHMARK.split)
    model = args.model or CONSTANT_VELOCITY
    predictors = {model: _load(model, device)}
    if model == CONSTANT_VELOCITY:
        predictors["constant_velocity_yaw"] = _load(model, device, along_heading=True)
    predictors |= _trained(checkpoints, device)
    exports = {}
    if args.export is not None:
        exported_model = str(checkpoints[0]) if checkpoints else model
        exports[exported_model] = args.export
    return _score_split(nuscenes.BENCHMARK, predictors, scenes, args.batch_size, exports)


def score_sdd(args: Namespace, device: torch.device) -> Table:
    """Constant velocity and checkpoints on the test tracks of Stanford Drone."""
    scenes = _read_split(Sdd(), args.data, sdd.BENCHMARK.split)
    model = args.model or CONSTANT_VELOCITY
    predictors = {model: _load(model, device)}
    predictors |= _trained(args.checkpoint or [], device)
    return _score_split(sdd.BENCHMARK, predictors, scenes, args.batch_size, {})


def _read_split(reader: Reader, data: Path, split: str) -> RawScenes:
    """The scenes of a split (TrajformerError: the folder has no such split)."""
    if split not in reader.splits(data):
        raise TrajformerError(f"{data}: no split '{split}' (expected {reader.layout})")
    return RawScenes(reader, data, split, reader.inputs(data, split))


def _score_split(
    rules: benchmark.Benchmark,
    predictors: Mapping[str, Predictor],
    scenes: RawScenes,
    batch_size: int,
    exports: Mapping[str, Path],
) -> Table:
    """The metrics of models on a split.

    `exports` are challenge files of nuScenes to write, by the label of the model.
    """
    _refuse_training_split(predictors, scenes.split)
    rows = {}
    for label, predictor in predictors.items():
        _announce(label)
        results = evaluate.run(predictor, scenes, batch_size=batch_size, progress=bars())
        if label in exports:
            results = nuscenes.write_challenge(exports[label], results)
        rows[label] = benchmark.score(rules, results)
    return benchmark.published_table(rules, rows), rows


# ---- INTERACTION: validation cases by location --------------------------------------------------


def score_interaction(args: Namespace, device: torch.device) -> Table:
    """Constant velocity or other models on the validation cases.

    The folder --export receives the files `<model>/<location>_sub.csv`.
    """
    if args.checkpoint:
        predictors = _trained(args.checkpoint, device, joint=args.joint)
    else:
        model = args.model or CONSTANT_VELOCITY
        predictors = {model: _load(model, device, recorded=True)}
    _refuse_training_split(predictors, CASES)
    cases: dict[str, dict[str, Any]] = {label: {} for label in predictors}  # by model and location
    for case_set in read_cases(args.data):
        for label, predictor in predictors.items():
            outcomes = list(
                interaction.outcomes(
                    predictor, case_set, batch_size=args.batch_size, progress=bars()
                )
            )
            cases[label][case_set.split] = [interaction.case_metrics(each) for each in outcomes]
            if args.export is not None:
                file = _export_folder(args.export, label) / f"{case_set.split}_sub.csv"
                interaction_challenge.write_challenge_file(file, outcomes)
    metrics = {label: interaction.summarize(locations) for label, locations in cases.items()}
    return interaction_table.published_table(metrics), metrics


def read_cases(data: Path) -> Iterator[interaction.CaseSet]:
    """The validation cases of each location (TrajformerError: no cases, or an unusable case)."""
    reader = Interaction()
    if CASES not in reader.splits(data):
        raise TrajformerError(f"{data}: no validation cases (expected {reader.layout})")
    for path, inputs in groupby(reader.inputs(data, CASES), lambda item: item.path):
        bar = tqdm(
            list(inputs),
            desc=f"read {path.stem}",
            unit="case",
            disable=not bars(),
            dynamic_ncols=True,
        )
        cases = [reader.read(item, CASES, data).validate() for item in bar]
        yield interaction.CaseSet(cases[0].city, data, cases)


# ---- Waymo: tracks to predict, or pairs -------------------------------------------------------


def score_waymo(args: Namespace, device: torch.device) -> Table:
    """Constant velocity, checkpoints or a forecast file on the scenes of a store or raw folder.

    Scenes without a recorded future are only written to the submission --export.
    """
    checkpoints = args.checkpoint or []
    if args.export is not None and len(checkpoints) > 1:
        raise TrajformerError("--export is for at most one checkpoint")
    scenes: RawScenes | SceneStore
    if args.split in store_splits(args.data):
        scenes = SceneStore(args.data, args.split)
    else:
        scenes = _read_split(Waymo(), args.data, args.split)
    sources: dict[str, Callable[[str], Sequence[TrackForecast]]] = {}
    if args.forecasts is not None:
        by_scene = read_forecasts(args.forecasts)
        sources[str(args.forecasts)] = lambda scene_id: by_scene.get(scene_id, [])
    else:
        predictors = _trained(checkpoints, device, joint=args.joint)
        if not predictors:
            model = args.model or CONSTANT_VELOCITY
            predictors = {model: _load(model, device)}
        _refuse_training_split(predictors, args.split)
        for label, predictor in predictors.items():
            tracks = evaluate.track_forecasts(
                predictor, scenes, batch_size=args.batch_size, progress=bars()
            )
            sources[label] = _TracksInOrder(tracks)
    tables = {}
    for label, tracks_of in sources.items():
        predictions = waymo.scene_predictions(_each(scenes), tracks_of)
        if args.export is not None:
            predictions = _with_export(predictions, args.export, args.joint)
        first = next(predictions, None)
        if first is None:
            raise TrajformerError(f"{args.data}: split '{args.split}': no scene has scored agents")
        predictions = chain([first], predictions)
        if first.scene.num_steps == first.scene.num_history:  # a testing split
            count = sum(1 for _ in predictions)
            return f"{count} scenes without a recorded future: nothing is scored", {}
        tables[label] = waymo.evaluate(predictions, args.joint)
    return waymo.published_table(tables, args.joint), tables


def _with_export(
    predictions: Iterator[waymo.ScenePrediction], path: Path, joint: bool
) -> Iterator[waymo.ScenePrediction]:
    """The predictions, which are also written to a submission; it is read back at the end."""
    objects: dict[str, set[int]] = {}
    with waymo_submission.submission(path, joint) as add:
        for prediction in predictions:
            yield add(prediction)
            names = [prediction.scene.agent_id[row] for row in prediction.row]
            objects[prediction.scene.scene_id] = set(map(int, names))
    waymo_submission.check_complete(path, objects)


class _TracksInOrder:
    """The forecasts of one scene after another; scenes without any are left out."""

    def __init__(self, tracks: Iterator[TrackForecast]) -> None:
        self._scenes = groupby(tracks, lambda track: track.scene_id)
        self._next: tuple[str, list[TrackForecast]] | None = None

    def __call__(self, scene_id: str) -> list[TrackForecast]:
        if self._next is None:
            found = next(self._scenes, None)
            self._next = (found[0], list(found[1])) if found else ("", [])
        name, tracks = self._next
        if name != scene_id:
            return []
        self._next = None
        return tracks


def _each(scenes: RawScenes | SceneStore) -> Iterator[Scene]:
    for index in range(len(scenes)):
        yield scenes[index]


# ---- ETH/UCY: five leave-one-out sets -----------------------------------------------------------


def score_eth_ucy(args: Namespace, device: torch.device) -> Table:
    """Constant velocity, plain and sampled, and models with a checkpoint for each set.

    By default these are the included weights of the crowd forecaster. The folder --export receives
    the samples of each model.
    """
    sources: dict[str, dict[str, Path | str]] = {}  # by model and set
    for name in UNTRAINED:
        sources[name] = dict.fromkeys(eth_ucy.COUNTS, name)
    for label, files in models_of(args.checkpoint or [CROWD_WEIGHTS]).items():
        sources[label] = dict(files)
    test_sets = {test_set.name: test_set for test_set in read_test_sets(args.data)}

    metrics: dict[str, dict[str, Metrics]] = {}  # by model, and by set or "mean"
    for label, source_of_set in sources.items():
        _announce(label)
        folder = None if args.export is None else _export_folder(args.export, label)
        rows = {}
        for name, source in source_of_set.items():
            predictor = _load(source, device)
            rows[name] = _score_set(predictor, test_sets[name], folder, args.batch_size)
        if rows.keys() == eth_ucy.COUNTS.keys():
            rows["mean"] = _mean_over_sets(list(rows.values()))
        metrics[label] = rows

    recorded = {name: eth_ucy.recorded_collision_rate(each) for name, each in test_sets.items()}
    recorded["mean"] = sum(recorded.values()) / len(recorded)
    return eth_ucy_table.published_table(metrics, recorded), metrics


def _score_set(
    predictor: Predictor, test_set: eth_ucy.TestSet, folder: Path | None, batch_size: int
) -> Metrics:
    """The metrics of a model on a set; its samples are written below `folder`, if it is given."""
    outcomes = eth_ucy.outcomes(predictor, test_set, batch_size=batch_size, progress=bars())
    if folder is None:
        return eth_ucy.score(test_set.name, outcomes)
    with eth_ucy.sample_folder(folder / test_set.name, test_set) as write:
        return eth_ucy.score(test_set.name, map(write, outcomes))


def _mean_over_sets(rows: Sequence[Metrics]) -> Metrics:
    """The mean of each metric and the sum of each count."""
    mean = {}
    for name in rows[0]:
        total = sum(row[name] for row in rows)
        mean[name] = total if name.startswith("num_") else total / len(rows)
    return mean


def read_test_sets(data: Path) -> list[eth_ucy.TestSet]:
    """The test windows of the five sets.

    Raises TrajformerError: a set is missing, unusable, or not the published version.
    """
    reader = EthUcy()
    splits = reader.splits(data)
    for name in eth_ucy.COUNTS:
        if f"{name}_test" not in splits:
            reason = f"no test recording of {name} (expected {reader.layout})"
            raise TrajformerError(f"{data}: {reason}")
    bar = tqdm(eth_ucy.COUNTS, desc="read", unit="set", disable=not bars(), dynamic_ncols=True)
    return [_read_test_set(reader, data, name) for name in bar]


def _read_test_set(reader: EthUcy, data: Path, name: str) -> eth_ucy.TestSet:
    split = f"{name}_test"
    inputs = reader.inputs(data, split)
    windows = [reader.read(item, split, data) for item in inputs]
    recordings = {item.path for item in inputs}
    intervals = {path.stem: read_recording(path, *LAYOUTS).interval for path in recordings}
    return eth_ucy.TestSet(name, data, windows, intervals).check()


def models_of(checkpoints: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Checkpoints by the label of their model and by set.

    A folder holds the checkpoints of one model: `eth.ckpt` or `eth/best.ckpt` is for the set eth,
    and so on; sets may be missing. Files are recognized by the same names, and files of one folder
    belong to one model. Raises TrajformerError: no checkpoint is named after a set, or there are
    two checkpoints for one set.
    """
    by_folder: dict[Path, dict[str, Path]] = {}
    for path in checkpoints:
        folder, files_of_sets = _files_of_model(path)
        if not files_of_sets:
            names = ", ".join(eth_ucy.COUNTS)
            reason = f"no checkpoint is named after one of the scenes {names}"
            raise TrajformerError(f"{path}: {reason} (eth.ckpt, eth/best.ckpt ...)")
        model = by_folder.setdefault(folder, {})
        for name, file in files_of_sets:
            other = model.setdefault(name, file)
            if other != file:
                raise TrajformerError(f"{file}: {other} is also for {name}")
    models = {}
    for label, files in zip(_labels_of(list(by_folder)), by_folder.values(), strict=True):
        models[label] = {name: files[name] for name in eth_ucy.COUNTS if name in files}
    return models


def _files_of_model(path: Path) -> tuple[Path, list[tuple[str, Path]]]:
    """The folder of a model, and pairs of a set and its checkpoint, for a path of --checkpoint."""
    if not path.is_dir():
        # The set is the name of the file (eth.ckpt) or of its folder (eth/best.ckpt).
        named = path.with_suffix("") if path.stem in eth_ucy.COUNTS else path.parent
        files = [(named.name, path)] if named.name in eth_ucy.COUNTS else []
        return named.parent, files
    files = []
    for name in eth_ucy.COUNTS:
        for pattern in CHECKPOINT_FILES:
            file = path / pattern.format(name)
            if file.is_file():
                files.append((name, file))
    return path, files


def _labels_of(folders: Sequence[Path]) -> list[str]:
    """The names of the folders, or their paths if two rows of the table would have one name."""
    names = [folder.resolve().name for folder in folders]
    rows = [*names, *UNTRAINED]
    if all(names) and len(set(rows)) == len(rows):
        return names
    return [str(folder) for folder in folders]


# ---- models -------------------------------------------------------------------------------------


def _load(source: Path | str, device: torch.device, **options: bool) -> Predictor:
    """Constant velocity with one mode, or another model by its name or checkpoint.

    `options` are fields of the config of constant velocity.
    """
    if source != CONSTANT_VELOCITY:
        return load_predictor(source, device)
    model = ConstantVelocityConfig(**options).build().to(device).eval()
    return Predictor(model, BatchConfig(), device)


def _trained(
    checkpoints: Sequence[Path], device: torch.device, joint: bool = False
) -> dict[str, Predictor]:
    """The models of checkpoints by their paths."""
    return {str(path): load_predictor(path, device, joint=joint) for path in checkpoints}


def _refuse_training_split(predictors: Mapping[str, Predictor], split: str) -> None:
    """Raise a TrajformerError if a model was trained on this split."""
    for label, predictor in predictors.items():
        if predictor.trained_on.split == split:
            reason = f"the model was trained on split '{split}', which is scored"
            raise TrajformerError(f"{label}: {reason}")


def _announce(label: str) -> None:
    """Print the name of a model above its progress bars."""
    if bars():
        tqdm.write(label, file=sys.stderr)


def _export_folder(export: Path, label: str) -> Path:
    """The folder for the files of a model."""
    return export / label.strip("./").replace("/", "-")
