"""Merging of stores: shards are copied byte for byte and renumbered.

The planned copies are written to `merged.json` before the first shard, so that an interrupted merge
can be resumed; `manifest.json` is written after the last shard.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trajformer.errors import StoreError
from trajformer.scenes.files import LOCK, atomically, lock_folder, read_file, write_atomically
from trajformer.scenes.manifest import (
    MAX_BYTES,
    MERGED,
    checksum,
    read_finished,
    shard_sizes,
    write_manifest,
)
from trajformer.scenes.shard import Shard, read_shard_info, shard_path
from trajformer.scenes.spec import CLOCK


class _Copy(NamedTuple):
    source: Path
    split: str
    target: str  # path below the new store
    sha256: str  # in the manifest of the source


Progress = Callable[[Iterator[_Copy], int], Iterator[_Copy]]


def merge_stores(stores: Sequence[Path], out: Path, progress: Progress) -> dict[str, Any]:
    """Merge finished stores into a new one, and return its manifest.

    Splits of the same name are joined in the order of `stores`. The shards also contain the skipped
    inputs. `out` is a folder that does not exist, is empty, or is from the same merge: after an
    interruption, the same call resumes. `progress` wraps an iterator of a known length, for a
    progress bar. Raises StoreError: a store is missing, unfinished, damaged or has another schema
    version, a scene id occurs twice in a split, stores have different units, scenes of a split have
    different clocks, or `out` is in use. Shards are written before the error only if a source
    differs from its manifest.
    """
    _check_folders(stores, out)
    copies = _plan(stores)
    _check_scenes(copies)
    if out.exists() and not out.is_dir():
        raise StoreError(f"{out}: not a folder")
    with lock_folder(out):
        _prepare_folder(stores, out, copies)
        _copy(copies, out, progress)
        return write_manifest(out, {out / copy.target: copy.sha256 for copy in copies})


def _check_folders(stores: Sequence[Path], out: Path) -> None:
    """Check that all stores exist and differ, and that none contains the new one or lies in it."""
    target = out.resolve()
    folders: list[Path] = []
    for store in stores:
        folder = store.resolve()
        if not store.is_dir():
            raise StoreError(f"{store}: no such store; make one with `trajformer preprocess`")
        if folder in folders:
            raise StoreError(f"{store}: given twice")
        if folder in (target, *target.parents) or target in folder.parents:
            raise StoreError(f"{out}: the new store and {store} must not contain each other")
        folders.append(folder)


def _plan(stores: Sequence[Path]) -> list[_Copy]:
    """The copies of all shards, numbered in each split."""
    copies = []
    num_shards = Counter[str]()  # by split
    for store in stores:
        for split, entry in read_finished(store)["splits"].items():
            sha256 = {shard["name"]: shard["sha256"] for shard in entry["shards"]}
            for name in shard_sizes(store / split):
                target = shard_path(Path(), split, num_shards[split]).as_posix()
                copies.append(_Copy(store / split / name, split, target, sha256[name]))
                num_shards[split] += 1
    return copies


def _check_scenes(copies: Sequence[_Copy]) -> None:
    """Check that scenes fit together: one unit, one clock in each split, and unique scene ids.

    Reading the scenes also finds damaged shards and other schema versions.
    """
    first_of_unit: dict[str, Path] = {}
    first_of_split: dict[str, tuple[_Clock, Path]] = {}
    shard_of: dict[tuple[str, str], Path] = {}  # by split and scene id
    for copy in copies:
        info, num_scenes = read_shard_info(copy.source)
        if num_scenes > 0:
            first_of_unit.setdefault(info.unit, copy.source)
        if len(first_of_unit) > 1:
            units = [f"{path} has lengths in {unit}" for unit, path in first_of_unit.items()]
            raise StoreError(f"stores of different units cannot be merged: {', '.join(units)}")
        table = Shard(copy.source).summary()
        columns = [table[name].round(9).tolist() for name in CLOCK]
        for clock in sorted(set(zip(*columns, strict=True))):
            first, path = first_of_split.setdefault(copy.split, (clock, copy.source))
            if clock != first:
                raise _different_clocks(copy, clock, first, path)
        for scene_id in table["scene_id"]:
            key = (copy.split, scene_id)
            if key in shard_of:
                reason = f"is in split '{copy.split}' already: {shard_of[key]}"
                raise StoreError(f"{copy.source}: scene {scene_id} {reason}")
            shard_of[key] = copy.source


_Clock = tuple[float, int, int]  # period_s, num_history and num_future


def _different_clocks(copy: _Copy, clock: _Clock, first: _Clock, path: Path) -> StoreError:
    differences = []
    for name, a, b in zip(CLOCK, first, clock, strict=True):
        if a != b:
            differences.append(f"{name} {a} and {b}")
    values = f"{' and '.join(differences)} of {path} and {copy.source}"
    return StoreError(
        f"split '{copy.split}' would have scenes of different clocks: {values}; "
        "convert one store with `trajformer store resample`"
    )


def _prepare_folder(stores: Sequence[Path], out: Path, copies: Sequence[_Copy]) -> None:
    """Write `merged.json` and remove temporary files of an interrupted merge.

    Raises StoreError: the folder has other content.
    """
    is_temporary = [path.match(f".{MERGED}.*.tmp") or path.name == LOCK for path in out.iterdir()]
    if not all(is_temporary):
        _check_same_merge(out, copies)
        for path in (*out.glob(".*.tmp"), *out.glob("*/.*.tmp")):
            path.unlink(missing_ok=True)
    shards = {copy.target: {"from": str(copy.source), "sha256": copy.sha256} for copy in copies}
    record = {"stores": list(map(str, stores)), "shards": shards}
    write_atomically(out / MERGED, json.dumps(record, indent=1) + "\n")


def _check_same_merge(out: Path, copies: Sequence[_Copy]) -> None:
    """Raise StoreError if a folder has files that are not from an earlier run of this merge."""
    try:
        recorded = json.loads(read_file(out / MERGED, MAX_BYTES))["shards"]
        earlier = {target: shard["sha256"] for target, shard in recorded.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        earlier = {}
    planned = {copy.target: copy.sha256 for copy in copies}
    present = {f"{path.parent.name}/{path.name}" for path in out.glob("*/*.arrow")}
    if earlier != planned or not present <= planned.keys():
        reason = "not empty, and not from an earlier run of this merge"
        raise StoreError(f"{out}: {reason}: choose another folder")


def _copy(copies: Sequence[_Copy], out: Path, progress: Progress) -> None:
    for copy in progress(iter(copies), len(copies)):
        path = out / copy.target
        if path.is_file() and checksum(path) == copy.sha256:
            continue  # from an interrupted merge
        with atomically(path) as temporary:
            shutil.copyfile(copy.source, temporary)
            if checksum(temporary) != copy.sha256:
                store = copy.source.parents[1]
                reason = f"differs from its manifest; see `trajformer store verify {store}`"
                raise StoreError(f"{copy.source}: {reason}")
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
