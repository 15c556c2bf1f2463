"""Several stores into one: their shards are copied byte for byte and numbered anew.

What has been copied from where is written to `merged.json` before the first shard, so that an interrupted merge can be
run again, and `manifest.json` after the last one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajformer.errors import StoreError
from trajformer.scenes.files import atomically, write_atomically
from trajformer.scenes.manifest import (
    MERGED,
    checksum,
    describe_store,
    manifest_matches_files,
    read_manifest,
    save_manifest,
    shard_sizes,
)
from trajformer.scenes.shard import read_scene_ids, shard_path


@dataclass(frozen=True)
class _Copy:
    """One shard: where it lies, where it goes (below the new store), and the checksum in its store's manifest."""

    source: Path
    target: str
    sha256: str


Progress = Callable[[Iterator[_Copy], int], Iterator[_Copy]]


def merge_stores(stores: Sequence[Path], out: Path, progress: Progress) -> dict[str, Any]:
    """Make one store of several; splits of the same name become one, in the order of `stores`.

    Skipped inputs are in the shards, so they come along. After an interruption the same call goes on.

    Args:
        stores: finished stores, which are only read.
        out: the new store: no such folder yet, an empty one, or that of the same merge.
        progress: wraps an iterator of a known length, for a progress bar.

    Returns:
        The manifest of the new store.

    Raises:
        StoreError: a store is missing, unfinished, damaged or of another schema version, a scene id occurs twice in a
            split, or `out` is in use. Nothing has been written then, unless it is the copies that turn out damaged.
    """
    _check_places(stores, out)
    copies = _plan(stores)
    _check_ids(copies)
    _begin(stores, out, copies)
    for copy in progress(iter(copies), len(copies)):
        path = out / copy.target
        if not (path.is_file() and checksum(path) == copy.sha256):
            with atomically(path) as temporary:
                shutil.copyfile(copy.source, temporary)
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
    manifest = describe_store(out)
    found = {f"{split}/{s['name']}": s["sha256"] for split, entry in manifest["splits"].items() for s in entry["shards"]}
    for copy in copies:
        if found[copy.target] != copy.sha256:
            (out / copy.target).unlink()
            raise StoreError(f"{copy.source}: not what its manifest says; see `trajformer store verify {copy.source.parents[1]}`")
    save_manifest(out, manifest)
    return manifest


def _check_places(stores: Sequence[Path], out: Path) -> None:
    places = [store.resolve() for store in stores]
    for store, place in zip(stores, places, strict=True):
        if not store.is_dir():
            raise StoreError(f"{store}: no such store; make one with `trajformer preprocess`")
        if places.count(place) > 1:
            raise StoreError(f"{store}: given twice")
        if place in (out.resolve(), *out.resolve().parents) or out.resolve() in place.parents:
            raise StoreError(f"{out}: the new store must lie outside of {store}, and that outside of it")


def _plan(stores: Sequence[Path]) -> list[_Copy]:
    copies, numbers = [], Counter[str]()
    for store in stores:
        manifest = read_manifest(store)
        if not manifest_matches_files(store, manifest):
            raise StoreError(f"{store}: manifest.json does not list the shards on disk: finish the store first")
        for split, entry in manifest["splits"].items():
            listed = {shard["name"]: shard for shard in entry["shards"]}
            for name in shard_sizes(store / split):
                target = shard_path(Path(), split, numbers[split]).as_posix()
                copies.append(_Copy(store / split / name, target, listed[name]["sha256"]))
                numbers[split] += 1
    return copies


def _check_ids(copies: Sequence[_Copy]) -> None:
    """Read the ids of all scenes, which also tells damaged shards and other schema versions."""
    homes: dict[str, dict[str, Path]] = {}
    for copy in copies:
        split = copy.source.parent.name
        home = homes.setdefault(split, {})
        for scene_id in read_scene_ids(copy.source):
            if scene_id in home:
                raise StoreError(f"{copy.source}: scene {scene_id} is in split '{split}' already: {home[scene_id]}")
            home[scene_id] = copy.source


def _begin(stores: Sequence[Path], out: Path, copies: Sequence[_Copy]) -> None:
    """Claim the new store's folder, and remove what a killed merge left half-written.

    Raises:
        StoreError: it holds something else.
    """
    if out.exists() and not out.is_dir():
        raise StoreError(f"{out}: not a folder")
    shards = {copy.target: {"from": str(copy.source), "sha256": copy.sha256} for copy in copies}
    if out.is_dir() and not all(path.match(f".{MERGED}.*.tmp") for path in out.iterdir()):
        present = {f"{path.parent.name}/{path.name}" for path in out.glob("*/*.arrow")}
        if _planned(out) != {copy.target: copy.sha256 for copy in copies} or not present <= shards.keys():
            raise StoreError(f"{out}: not empty, and not of an earlier run of this merge: give another folder")
        for path in (*out.glob(".*.tmp"), *out.glob("*/.*.tmp")):
            path.unlink(missing_ok=True)
    record = {"stores": [str(store) for store in stores], "shards": shards}
    write_atomically(out / MERGED, json.dumps(record, indent=1) + "\n")


def _planned(out: Path) -> dict[str, str]:
    try:
        return {target: shard["sha256"] for target, shard in json.loads((out / MERGED).read_text())["shards"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
