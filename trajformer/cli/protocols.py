"""`trajformer evaluate --protocol eth_ucy`: from the recordings to the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs
from trajformer.errors import TrajformerError
from trajformer.recipes.names import WEIGHTS
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from trajformer.evaluation.protocols.eth_ucy import TestSet
    from trajformer.models.forecaster import Predictor

_FILES = ("{}.ckpt", "{}.safetensors", "{}/best.ckpt")  # checkpoint of a scene in the folder of a model
CROWD_WEIGHTS = WEIGHTS / "crowd_eth_ucy"


def evaluate(data: Path, checkpoints: Sequence[Path], args: Namespace) -> None:
    """Score constant velocity and trained models on the five scenes, and print the published table with these rows.

    Without checkpoints, the weights of the crowd forecaster that are part of trajformer are scored. `args` has the options
    `accelerator`, `batch_size`, `json` and `export` of `trajformer evaluate`.
    """
    from trajformer.data.sample import BatchConfig
    from trajformer.evaluation.protocols.eth_ucy import COUNTS, mean_of_scenes, recorded_collision_rate, table
    from trajformer.models.constant_velocity import ConstantVelocity
    from trajformer.models.forecaster import Predictor
    from trajformer.recipes.checkpoint import UNTRAINED, load_predictor, pick_device

    device, models = pick_device(args.accelerator), models_of(checkpoints or [CROWD_WEIGHTS])
    check_outputs(args, json="json", export="folder")
    sets = {test_set.name: test_set for test_set in read_test_sets(data)}
    sources: dict[str, dict[str, Path | str]] = {name: dict.fromkeys(COUNTS, name) for name in UNTRAINED}
    sources |= {label: dict(files) for label, files in models.items()}
    results: dict[str, dict[str, dict[str, float]]] = {}  # figures by model, by scene or "mean", and by name
    for label, source_of in sources.items():
        if bars():
            tqdm.write(label, file=sys.stderr)
        figures = {}
        for name, source in source_of.items():
            if source == "constant_velocity":  # with one mode
                predictor = Predictor(ConstantVelocity().eval(), BatchConfig(), device)
            else:
                predictor = load_predictor(source, device)
            folder = None if args.export is None else args.export / label.strip("./").replace("/", "-") / name
            figures[name] = _score(predictor, sets[name], folder, args.batch_size)
        mean = mean_of_scenes(figures)
        results[label] = figures | ({"mean": mean} if mean else {})
    recorded = {name: recorded_collision_rate(test_set) for name, test_set in sets.items()}
    print(table(results, recorded | {"mean": sum(recorded.values()) / len(recorded)}))
    if args.json is not None:
        write_atomically(args.json, json.dumps(results, indent=1) + "\n")


def _score(predictor: Predictor, test_set: TestSet, folder: Path | None, batch_size: int) -> dict[str, float]:
    """The figures of a model on a scene. Its samples are written to `folder`, unless it is None."""
    from trajformer.evaluation.protocols.eth_ucy import outcomes, sample_folder, score

    forecasts = outcomes(predictor, test_set, batch_size=batch_size, progress=bars())
    if folder is None:
        return score(test_set.name, forecasts)
    with sample_folder(folder, test_set) as write:
        return score(test_set.name, map(write, forecasts))


def read_test_sets(data: Path) -> list[TestSet]:
    """The test windows of all five scenes.

    Raises:
        TrajformerError: no such folder, a scene is missing or its file cannot be used, or the recordings are not the ones of
            the published figures.
    """
    from data_prep.readers.eth_ucy import EthUcy, read_recording
    from trajformer.evaluation.protocols.eth_ucy import COUNTS, TestSet

    if not data.is_dir():
        raise TrajformerError(f"{data}: no such folder")
    reader = EthUcy()
    splits = reader.splits(data)
    if missing := [name for name in COUNTS if f"{name}_test" not in splits]:
        raise TrajformerError(f"{data}: no test recording of {missing[0]} (expected {reader.layout})")
    sets = []
    for name in tqdm(COUNTS, desc="read", unit="set", disable=not bars(), dynamic_ncols=True):
        split = f"{name}_test"
        inputs = reader.inputs(data, split)
        windows = [reader.read(item, split, data) for item in inputs]
        step = {path.stem: read_recording(path).interval for path in {item.path for item in inputs}}
        sets.append(TestSet(name, data, windows, step).check())
    return sets


def models_of(checkpoints: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Checkpoints by the label of their model and by scene.

    A folder holds the checkpoints of one model: `eth.ckpt` or `eth/best.ckpt` is for the scene eth, and so on; scenes may be
    missing. Files are recognized by the same names, and files of one folder belong to one model.

    Raises:
        TrajformerError: no checkpoint is named after a scene, or there are two checkpoints for one scene.
    """
    from trajformer.evaluation.protocols.eth_ucy import COUNTS
    from trajformer.recipes.checkpoint import UNTRAINED

    by_folder: dict[Path, dict[str, Path]] = {}
    for path in checkpoints:
        if path.is_dir():
            files = [(scene, path / name.format(scene), path) for scene in COUNTS for name in _FILES]
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
    ordered = [{scene: files[scene] for scene in COUNTS if scene in files} for files in by_folder.values()]
    return dict(zip(labels, ordered, strict=True))
