"""The store's summary: `manifest.json`, derived from its shards, and the check of a whole store."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trajformer.errors import SceneError, StoreError
from trajformer.scenes.files import write_atomically
from trajformer.scenes.shard import SCHEMA_VERSION, Shard, ShardInfo, read_shard_info

MANIFEST = "manifest.json"
MERGED = "merged.json"  # in a store made by `trajformer store merge`: what it was made of
_SPLIT: dict[str, type] = {"scenes": int, "bytes": int, "source": list, "skipped": list, "shards": list}
_SHARD: dict[str, type] = {"name": str, "scenes": int, "bytes": int, "sha256": str}
_SKIPPED: dict[str, type] = {"input": str, "reason": str}


def store_splits(root: Path | str) -> list[str]:
    """Names of the splits that have shards."""
    return sorted(folder.name for folder in Path(root).glob("*/") if shard_sizes(folder))


def shard_sizes(folder: Path) -> dict[str, int]:
    """Bytes of every shard in the folder of a split, by file name, in the order of their numbers."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    shards = [entry for entry in entries if entry.name.endswith(".arrow") and not entry.name.startswith(".") and entry.is_file()]
    found = {entry.name: entry.stat().st_size for entry in shards}
    return {name: found[name] for name in sorted(found, key=lambda name: (len(name), name))}


def manifest_matches_files(root: Path, manifest: dict[str, Any]) -> bool:
    """True when the manifest lists all shards that are there and no other, by name and size."""
    listed = {split: {shard["name"]: shard["bytes"] for shard in entry["shards"]} for split, entry in manifest["splits"].items()}
    found = {split: shard_sizes(root / split) for split in store_splits(root)}
    return found == {split: shards for split, shards in listed.items() if shards}


def count_scenes(root: Path, split: str) -> dict[str, int]:
    """Scenes of every shard of a split, by file name: from the manifest where it lists these very files.

    While a store is being prepared there is no manifest, and the shards say it themselves.

    Raises:
        StoreError: a shard is cut short, damaged, foreign, or of another schema version.
    """
    found = shard_sizes(root / split)
    try:
        listed = {shard["name"]: shard for shard in read_manifest(root)["splits"][split]["shards"]}
    except (StoreError, KeyError):
        listed = {}
    if found == {name: shard["bytes"] for name, shard in listed.items()}:
        return {name: listed[name]["scenes"] for name in found}
    return {name: read_shard_info(root / split / name)[1] for name in found}


def checksum(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe_shard(path: Path, digest: str = "") -> tuple[dict[str, Any], ShardInfo]:
    digest = digest or checksum(path)  # first: a disk that fails is an error here, and the end of the process in mapped memory
    info, count = read_shard_info(path)
    return {"name": path.name, "scenes": count, "bytes": path.stat().st_size, "sha256": digest}, info


def _sum_up(shards: list[tuple[dict[str, Any], ShardInfo]]) -> dict[str, Any]:
    entries = [entry for entry, _ in shards]
    total = {key: sum(entry[key] for entry in entries) for key in ("scenes", "bytes")}
    skipped = [{"input": name, "reason": reason} for _, info in shards for name, reason in info.skipped]
    return {"source": sorted({info.source for _, info in shards}), **total, "skipped": skipped, "shards": entries}


def describe_store(root: Path, known: Mapping[Path, str] | None = None) -> dict[str, Any]:
    """Counts, sizes, checksums and skipped inputs of every split, read from the shards themselves.

    Args:
        root: the store.
        known: checksums that need not be computed, by the shard's path.

    Raises:
        StoreError: there is no store, or a shard cannot be read.
    """
    known, splits = known or {}, {}
    for split in store_splits(root):
        paths = [root / split / name for name in shard_sizes(root / split)]
        splits[split] = _sum_up([_describe_shard(path, known.get(path, "")) for path in paths])
    if not splits:
        raise StoreError(f"{root}: no store here (no <split>/*.arrow); make one with `trajformer preprocess`")
    return {"schema_version": SCHEMA_VERSION, "splits": splits}


def write_manifest(root: Path, known: Mapping[Path, str] | None = None) -> dict[str, Any]:
    """Describe the store, write `manifest.json` atomically, and return what it says; arguments as `describe_store`."""
    manifest = describe_store(root, known)
    save_manifest(root, manifest)
    return manifest


def save_manifest(root: Path, manifest: dict[str, Any]) -> None:
    """Write `manifest.json` atomically."""
    write_atomically(root / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def read_manifest(root: Path) -> dict[str, Any]:
    """The manifest as written when preparing ended.

    Raises:
        StoreError: it is missing, not a manifest, or of another schema version.
    """
    path = root / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: no readable manifest ({error}); run `trajformer preprocess`") from error
    found = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if found != SCHEMA_VERSION:
        raise StoreError(f"{path}: schema_version {found}, this software reads {SCHEMA_VERSION}: preprocess again")
    splits = manifest.get("splits")
    _require(path, "splits", {"splits": splits}, {"splits": dict})
    for split, entry in splits.items():
        _require(path, split, entry, _SPLIT)
        for part, kinds in (("shards", _SHARD), ("skipped", _SKIPPED)):
            for number, item in enumerate(entry[part]):
                _require(path, f"{split}: {part}[{number}]", item, kinds)
    return manifest


def _require(path: Path, place: str, value: Any, kinds: dict[str, type]) -> None:
    for name, kind in kinds.items():
        if not isinstance(value, dict) or type(value.get(name)) is not kind:
            raise StoreError(f"{path}: {place}: {name}: not of a manifest; run `trajformer preprocess` again")


def verify_store(root: Path, progress: Callable[[Iterator[Path], int], Iterator[Path]]) -> list[str]:
    """Compare every shard with the manifest and validate every scene.

    Args:
        root: the store.
        progress: wraps an iterator of a known length, for a progress bar.

    Returns:
        One line for every fault found; an empty list for a sound store.

    Raises:
        StoreError: there is no manifest to compare with.
    """
    manifest = read_manifest(root)["splits"]
    listed = {(split, entry["name"]): entry for split, value in manifest.items() for entry in value["shards"]}
    found = {(split, name): None for split in store_splits(root) for name in shard_sizes(root / split)}
    faults = [f"{split}/{name}: on disk but not in the manifest" for split, name in found if (split, name) not in listed]
    faults += [
        f"{root / split / name}: listed in the manifest but missing" for split, name in listed if (split, name) not in found
    ]
    both = [place for place in listed if place in found]
    shards: dict[str, list[tuple[dict[str, Any], ShardInfo]]] = {split: [] for split in manifest}
    seen: dict[str, set[str]] = {split: set() for split in manifest}
    for path in progress((root / split / name for split, name in both), len(both)):
        split = path.parent.name
        try:
            shards[split].append(_describe_shard(path))
            faults += _differences(path, shards[split][-1][0], listed[split, path.name])
            faults += _scene_faults(Shard(path), seen[split])
        except (StoreError, OSError) as error:
            faults.append(str(error))
    if not faults:
        faults += [f"{root / MANIFEST}: {s}: does not sum up its shards" for s in manifest if manifest[s] != _sum_up(shards[s])]
    return faults


def _differences(path: Path, found: dict[str, Any], listed: dict[str, Any]) -> list[str]:
    if found["sha256"] != listed["sha256"]:
        return [f"{path}: checksum differs from the manifest"]
    return [f"{path}: {key} differs from the manifest" for key in ("scenes", "bytes") if found[key] != listed[key]]


def _scene_faults(shard: Shard, seen: set[str]) -> list[str]:
    """What is wrong with the scenes of a shard; `seen` are the ids that its split has had so far."""
    faults = []
    for row in range(len(shard)):
        try:
            scene = shard.scene(row).validate()
            if scene.scene_id in seen:
                faults.append(f"{shard.path}: row {row}: scene {scene.scene_id}: occurs twice in its split")
            seen.add(scene.scene_id)
        except (SceneError, StoreError, ValueError) as error:
            text = str(error)
            faults.append(text if isinstance(error, StoreError) else f"{shard.path}: row {row}: {text}")
    return faults
