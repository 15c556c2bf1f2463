"""The store's summary: `manifest.json`, derived from its shards, and the check of a whole store."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trajformer.errors import SceneError, StoreError, TrajformerError
from trajformer.shard import SCHEMA_VERSION, Shard, read_shard_info
from trajformer.store import store_splits

MANIFEST = "manifest.json"


def write_atomically(path: Path, text: str) -> None:
    """Write a text file under a temporary name beside its place, then rename it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_store(root: Path) -> dict[str, Any]:
    """Counts, sizes, checksums and skipped inputs of every split, read from the shards themselves.

    Raises:
        StoreError: there is no store, or a shard cannot be read.
    """
    splits: dict[str, Any] = {}
    for split in store_splits(root):
        shards: list[dict[str, Any]] = []
        skipped, sources = [], set()
        for path in sorted((root / split).glob("*.arrow")):
            info, count = read_shard_info(path)
            size, checksum = path.stat().st_size, _checksum(path)
            shards.append({"name": path.name, "scenes": count, "bytes": size, "sha256": checksum})
            skipped += [{"input": name, "reason": reason} for name, reason in info.skipped]
            sources.add(info.source)
        total, size = sum(s["scenes"] for s in shards), sum(s["bytes"] for s in shards)
        splits[split] = {"source": sorted(sources), "scenes": total, "bytes": size}
        splits[split] |= {"skipped": skipped, "shards": shards}
    if not splits:
        raise StoreError(f"{root}: no store here (no <split>/*.arrow); make one with `trajformer preprocess`")
    return {"schema_version": SCHEMA_VERSION, "splits": splits}


def write_manifest(root: Path) -> dict[str, Any]:
    """Describe the store, write `manifest.json` atomically, and return what it says."""
    manifest = describe_store(root)
    write_atomically(root / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return manifest


def read_manifest(root: Path) -> dict[str, Any]:
    """The manifest as written when preparing ended.

    Raises:
        StoreError: it is missing or not JSON.
    """
    try:
        return json.loads((root / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{root / MANIFEST}: no readable manifest ({error}); run `trajformer preprocess`") from error


def verify_store(root: Path, progress: Callable[[Iterator[Path], int], Iterator[Path]]) -> list[str]:
    """Compare every shard with the manifest's checksum and validate every scene.

    Args:
        root: the store.
        progress: wraps an iterator of a known length, for a progress bar.

    Returns:
        One line for every fault found; an empty list for a sound store.
    """
    manifest, faults = read_manifest(root), []
    listed = {(split, s["name"]): s for split, value in manifest["splits"].items() for s in value["shards"]}
    found = {(path.parent.name, path.name) for path in root.glob("*/*.arrow")}
    faults += [f"{split}/{name}: on disk but not in the manifest" for split, name in sorted(found - set(listed))]
    for path in progress((root / split / name for split, name in listed), len(listed)):
        entry = listed[path.parent.name, path.name]
        try:
            if not path.is_file():
                raise StoreError(f"{path}: listed in the manifest but missing")
            shard = Shard(path)
            if _checksum(path) != entry["sha256"]:
                faults.append(f"{path}: checksum differs from the manifest")
        except TrajformerError as error:
            faults.append(str(error))
            continue
        for row in range(len(shard)):
            try:
                shard.scene(row).validate()
            except (SceneError, ValueError) as error:
                faults.append(f"{path}: row {row}: {error}")
    return faults
