"""What each command does, as functions with plain arguments; `cli.py` reads the command line and calls them.

Imports are local where they are slow, so that `trajformer --help` answers at once, and where a package is optional.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from trajformer.errors import StoreError, TrajformerError
from trajformer.manifest import read_manifest, verify_store, write_atomically
from trajformer.shard import SCHEMA_VERSION

Accelerator = Literal["auto", "cpu", "gpu"]


def _bars() -> bool:
    """Progress bars are for terminals; a log file would fill with them."""
    return sys.stderr.isatty()


def _make_folder(out: Path, wanted_for: Path | None = None) -> None:
    """Make a folder before the work begins.

    Raises:
        TrajformerError: it cannot be made; names what was to be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrajformerError(f"{wanted_for or out}: cannot be written: {error.filename}: {error.strerror}") from error


def _make_room(*files: Path | None) -> None:
    """Make the folders of files that will be written, before the work begins."""
    for file in files:
        if file is not None and file.is_dir():
            raise TrajformerError(f"{file}: cannot be written: is a folder")
        if file is not None:
            _make_folder(file.parent, file)


def synthesize(out: Path, scenes: int, seed: int, workers: int) -> None:
    """Write simulated scenes in the official Argoverse 2 raw layout and say how many each split has."""
    from data_prep.synthetic import synthesize as simulate

    _make_folder(out)
    counts = simulate(out, scenes, seed, workers=workers, progress=_bars())
    print(", ".join(f"{split} {count}" for split, count in counts.items()) + f" scenes in {out}")


def preprocess(source: str, raw: Path, store: Path, **options: Any) -> None:
    """Prepare a raw data set and say what was kept, what was skipped and why."""
    from data_prep.argoverse1 import Argoverse1
    from data_prep.argoverse2 import Argoverse2
    from data_prep.prepare import PrepareOptions, prepare

    reader = {"argoverse1": Argoverse1, "argoverse2": Argoverse2}[source]()
    summary = prepare(reader, raw, store, PrepareOptions(progress=_bars(), **options))
    for split in summary.splits:
        kept = f", {split.kept_shards} of {split.shards} shards were there already" if split.kept_shards else ""
        print(f"{split.split}: {split.scenes} scenes, {split.bytes / 1e6:.1f} MB, {len(split.skipped)} skipped{kept}")
        for name, reason in split.skipped:
            print(f"  skipped {name}: {reason}")
    print(f"{store}: {summary.scenes} scenes in {summary.seconds:.1f} s")


def store_info(store: Path) -> None:
    """Print the counts and sizes of every split."""
    manifest = _manifest(store)
    print(f"{store}: schema version {manifest['schema_version']}")
    for split, entry in manifest["splits"].items():
        size = entry["bytes"]
        each = size / max(entry["scenes"], 1) / 1e3
        shards = len(entry["shards"])
        print(f"  {split}: {entry['scenes']} scenes, {size / 1e6:.1f} MB ({each:.1f} kB a scene), {shards} shards")
        print(f"    from {', '.join(entry['source'])}; {len(entry['skipped'])} skipped")
        for skipped in entry["skipped"]:
            print(f"    skipped {skipped['input']}: {skipped['reason']}")


def _manifest(store: Path) -> dict[str, Any]:
    if not store.is_dir():
        raise StoreError(f"{store}: no such store; make one with `trajformer preprocess`")
    manifest = read_manifest(store)
    found = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if found != SCHEMA_VERSION:
        expected = f"this software reads {SCHEMA_VERSION}: preprocess again"
        raise StoreError(f"{store}/manifest.json: schema_version {found}, {expected}")
    return manifest


def store_verify(store: Path) -> None:
    """Check every shard and scene.

    Raises:
        StoreError: there are faults; all of them have been printed.
    """

    def progress(items: Iterator[Path], total: int) -> Iterator[Path]:
        return iter(tqdm(items, total=total, unit="shard", desc="verify", dynamic_ncols=True, disable=not _bars()))

    _manifest(store)
    faults = verify_store(store, progress)
    for fault in faults:
        print(fault)
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults, the first"
        raise StoreError(f"{store}: {count}: {faults[0]}")
    print(f"{store}: sound")


def evaluate(
    checkpoint: Path | None,
    store: Path,
    split: str,
    *,
    json_file: Path | None,
    csv_file: Path | None,
    accelerator: Accelerator,
    batch_size: int,
) -> dict[str, float]:
    """Score a model on a split and print the table."""
    from trajformer.evaluation import evaluate as score
    from trajformer.evaluation import load_predictor, pick_device
    from trajformer.store import SceneStore

    scenes = SceneStore(store, split)
    predictor = load_predictor(checkpoint, pick_device(accelerator))
    _make_room(json_file, csv_file)
    result = score(predictor, scenes, batch_size=batch_size, progress=_bars(), rows=csv_file)
    print_table([(str(checkpoint or "constant_velocity"), result)])
    if json_file is not None:
        write_atomically(json_file, json.dumps(result, indent=1) + "\n")
    return result


def print_table(rows: list[tuple[str, dict[str, float]]]) -> None:
    """Models below each other, metrics beside each other; metres."""
    names = [f"{name}_{k}" for k in (1, 6) for name in ("minADE", "minFDE", "MR", "brier_minFDE")]
    width = max(len(label) for label, _ in rows)
    print(" " * width + "  agents " + " ".join(f"{name:>14}" for name in names))
    for label, row in rows:
        print(f"{label:<{width}}  {row['num_agents']:6d} " + " ".join(f"{row[name]:14.3f}" for name in names))


def predict(
    checkpoint: Path | None,
    store: Path,
    split: str,
    out: Path,
    *,
    targets: Literal["scored", "focal", "all"],
    accelerator: Accelerator,
    batch_size: int,
) -> None:
    """Write every target's modes to a parquet file with the Argoverse 2 challenge columns."""
    from trajformer.evaluation import load_predictor, pick_device, track_forecasts
    from trajformer.store import SceneStore
    from trajformer.submission import write_forecasts

    scenes = SceneStore(store, split)
    predictor = load_predictor(checkpoint, pick_device(accelerator), targets)
    _make_room(out)
    count = write_forecasts(out, track_forecasts(predictor, scenes, batch_size=batch_size, progress=_bars()))
    if not count:
        raise TrajformerError(f"{store}: split '{split}' has no agent to forecast ({targets})")
    print(f"{out}: forecasts of {count} agents in {len(scenes)} scenes")


def plot(
    store: Path,
    split: str | None,
    forecasts: Path | None,
    out: Path,
    *,
    scene: list[str],
    worst: int | None,
    random: int | None,
    seed: int,
) -> list[Path]:
    """Draw scenes, with forecasts where there are any, and print the paths of the pictures."""
    from trajformer.plotting.scene import save_scene_plots
    from trajformer.plotting.select import choose_scenes
    from trajformer.store import SceneStore
    from trajformer.submission import read_forecasts

    if worst is not None and forecasts is None:
        raise TrajformerError("--worst needs --forecasts to tell what is bad")
    modes = read_forecasts(forecasts) if forecasts is not None else {}
    scenes = SceneStore(store, split or _split_of(store, scene or list(modes)))
    if not (scene or worst is not None or random is not None):
        random = 8
    chosen = choose_scenes(scenes, modes, scene_ids=scene, worst=worst, random=random, seed=seed)
    if not chosen:
        raise TrajformerError(f"{store}: split '{scenes.split}' has no scene to draw (--worst needs recorded futures)")
    _make_folder(out)
    paths = save_scene_plots(scenes, chosen, modes, out, progress=_bars())
    for path in paths:
        print(path)
    return paths


def _split_of(store: Path, wanted: list[str]) -> str:
    """The split that has most of the wanted scenes (ids recur between splits); without any, val or the only one."""
    from trajformer.store import SceneStore, store_splits

    splits = store_splits(store)
    found = {split: len(set(wanted) & set(SceneStore(store, split).scene_ids())) for split in splits} if wanted else {}
    if any(found.values()):
        return max(splits, key=lambda split: (found[split], split == "val"))
    if wanted and splits:
        raise TrajformerError(f"{store}: has no scene {wanted[0]} in any split ({', '.join(splits)})")
    return splits[0] if len(splits) == 1 else "val"
