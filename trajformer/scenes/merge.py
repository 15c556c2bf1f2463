"""Merging of stores: shards are copied byte for byte and renumbered.

The planned copies are written to `merged.json` before the first shard, so that an interrupted merge can be resumed;
`manifest.json` is written after the last shard.
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
    target: str  # path below the new store
    sha256: str  # in the manifest of the source


Progress = Callable[[Iterator[_Copy], int], Iterator[_Copy]]


def merge_stores(stores: Sequence[Path], out: Path, progress: Progress) -> dict[str, Any]:
    """Merge finished stores into a new one, and return its manifest; splits of the same name are joined in the order of `stores`.

    The shards also contain the skipped inputs. `out` is a folder that does not exist, is empty, or is from the same merge: after
    an interruption, the same call resumes. `progress` wraps an iterator of a known length, for a progress bar. Raises StoreError:
    a store is missing, unfinished, damaged or has another schema version, a scene id occurs twice in a split, stores have
    different units, scenes of a split have different clocks, or `out` is in use. Shards are written before the error only if a
    source differs from its manifest.
    """
    folders, target = [store.resolve() for store in stores], out.resolve()
    for store, folder in zip(stores, folders, strict=True):
        if not store.is_dir():
            raise StoreError(f"{store}: no such store; make one with `trajformer preprocess`")
        if folders.count(folder) > 1:
            raise StoreError(f"{store}: given twice")
        if folder in (target, *target.parents) or target in folder.parents:
            raise StoreError(f"{out}: the new store and {store} must not contain each other")
    copies = _plan(stores)
    if out.exists() and not out.is_dir():
        raise StoreError(f"{out}: not a folder")
    with lock_folder(out):
        _prepare_folder(stores, out, copies)
        _copy(copies, out, progress)
        return write_manifest(out, {out / copy.target: copy.sha256 for copy in copies})


def _copy(copies: Sequence[_Copy], out: Path, progress: Progress) -> None:
    for copy in progress(iter(copies), len(copies)):
        path = out / copy.target
        if not (path.is_file() and checksum(path) == copy.sha256):
            with atomically(path) as temporary:
                shutil.copyfile(copy.source, temporary)
                if checksum(temporary) != copy.sha256:
                    reason = f"differs from its manifest; see `trajformer store verify {copy.source.parents[1]}`"
                    raise StoreError(f"{copy.source}: {reason}")
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())


def _plan(stores: Sequence[Path]) -> list[_Copy]:
    """The copies. Scene ids must be unique in each split; reading them also finds damaged shards and other schema versions."""
    copies, numbers, shard_of = [], Counter[str](), dict[tuple[str, str], Path]()
    for store in stores:
        for split, entry in read_finished(store)["splits"].items():
            sha256 = {shard["name"]: shard["sha256"] for shard in entry["shards"]}
            for name in shard_sizes(store / split):
                target = shard_path(Path(), split, numbers[split]).as_posix()
                copies.append(_Copy(store / split / name, target, sha256[name]))
                numbers[split] += 1
    shard_in: dict[str, Path] = {}  # by unit
    clocks: dict[str, tuple[tuple[float, int, int], Path]] = {}  # the first of each split
    for copy in copies:
        info, scenes = read_shard_info(copy.source)
        if scenes and shard_in.setdefault(info.unit, copy.source) and len(shard_in) > 1:
            lengths = ", ".join(f"{path} has lengths in {unit}" for unit, path in shard_in.items())
            raise StoreError(f"stores of different units cannot be merged: {lengths}")
        split = copy.source.parent.name
        table = Shard(copy.source).summary()
        for clock in sorted(
            set(zip(*(table[name].round(9).tolist() for name in CLOCK), strict=True))
        ):
            first, path = clocks.setdefault(split, (clock, copy.source))
            if clock != first:
                values = " and ".join(
                    f"{name} {a} and {b}"
                    for name, a, b in zip(CLOCK, first, clock, strict=True)
                    if a != b
                )
                reason = f"{values} of {path} and {copy.source}; convert one store with `trajformer store resample`"
                raise StoreError(f"split '{split}' would have scenes of different clocks: {reason}")
        for scene_id in table["scene_id"]:
            if (split, scene_id) in shard_of:
                raise StoreError(
                    f"{copy.source}: scene {scene_id} is in split '{split}' already: {shard_of[split, scene_id]}"
                )
            shard_of[split, scene_id] = copy.source
    return copies


def _prepare_folder(stores: Sequence[Path], out: Path, copies: Sequence[_Copy]) -> None:
    """Write `merged.json` and remove temporary files of an interrupted merge (StoreError: the folder has other content)."""
    shards = {copy.target: {"from": str(copy.source), "sha256": copy.sha256} for copy in copies}
    record = {"stores": [str(store) for store in stores], "shards": shards}
    if not all(path.match(f".{MERGED}.*.tmp") or path.name == LOCK for path in out.iterdir()):
        present = {f"{path.parent.name}/{path.name}" for path in out.glob("*/*.arrow")}
        try:
            found = json.loads(read_file(out / MERGED, MAX_BYTES))["shards"]
            earlier = {target: shard["sha256"] for target, shard in found.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            earlier = {}
        if earlier != {copy.target: copy.sha256 for copy in copies} or not present <= shards.keys():
            raise StoreError(
                f"{out}: not empty, and not from an earlier run of this merge: choose another folder"
            )
        for path in (*out.glob(".*.tmp"), *out.glob("*/.*.tmp")):
            path.unlink(missing_ok=True)
    write_atomically(out / MERGED, json.dumps(record, indent=1) + "\n")
