"""The manifest of a store, `manifest.json`: a summary of its shards with checksums, and the verification of a store."""

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trajformer.errors import SceneError, StoreError
from trajformer.scenes.files import read_file, write_atomically
from trajformer.scenes.shard import SCHEMA_VERSION, Shard, ShardInfo, read_shard_info

MANIFEST = "manifest.json"
MAX_BYTES = 1 << 30  # of a manifest
MERGED = "merged.json"  # the sources of a store that `trajformer store merge` made
RESAMPLED = "resampled.json"  # the source of a store that `trajformer store resample` made
_CHECKSUM = re.compile(r'\{\n "checksum": "([0-9a-f]{8})",\n')  # CRC-32 of the text after it
_FIELDS = {"schema_version", "splits", "records"}
_SPLIT: dict[str, type] = {
    "scenes": int,
    "bytes": int,
    "source": list,
    "skipped": list,
    "shards": list,
}
MAX_COUNT = 2**60  # of scenes, bytes and shards
_PARTS: dict[str, dict[str, type]] = {  # of each shard and of each skipped input
    "shards": {"name": str, "scenes": int, "bytes": int, "sha256": str},
    "skipped": {"input": str, "reason": str},
}


def store_splits(root: Path | str) -> list[str]:
    """Names of the splits that have shards."""
    return sorted(folder.name for folder in Path(root).glob("*/") if shard_sizes(folder))


def shard_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each shard in the folder of a split, by file name, in the order of the shard numbers."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    shards = [
        entry
        for entry in entries
        if entry.name.endswith(".arrow") and not entry.name.startswith(".") and entry.is_file()
    ]
    return {
        entry.name: entry.stat().st_size
        for entry in sorted(shards, key=lambda entry: (len(entry.name), entry.name))
    }


def manifest_matches_files(root: Path, manifest: dict[str, Any]) -> bool:
    """True if the manifest lists exactly the shards on disk, by name and size."""
    listed = {
        split: {shard["name"]: shard["bytes"] for shard in entry["shards"]}
        for split, entry in manifest["splits"].items()
    }
    on_disk = {split: shard_sizes(root / split) for split in store_splits(root)}
    return on_disk == {split: shards for split, shards in listed.items() if shards}


def read_finished(root: Path) -> dict[str, Any]:
    """The manifest of a finished store (StoreError: there is none, or it does not list exactly the shards on disk)."""
    manifest = read_manifest(root)
    if not manifest_matches_files(root, manifest):
        raise StoreError(
            f"{root}: manifest.json does not list the shards on disk: finish the store first"
        )
    return manifest


def count_scenes(root: Path, split: str, sizes: dict[str, int]) -> dict[str, int]:
    """Number of scenes in every shard of a split with these `shard_sizes`, by file name.

    The numbers come from the manifest if it lists these files, and otherwise (while a store is prepared) from the shards. Raises
    StoreError: a shard is truncated, damaged, not a shard, or has another schema version.
    """
    try:
        listed = {shard["name"]: shard for shard in read_manifest(root)["splits"][split]["shards"]}
    except (StoreError, KeyError):
        listed = {}
    if sizes == {name: shard["bytes"] for name, shard in listed.items()}:
        return {name: listed[name]["scenes"] for name in sizes}
    return {name: read_shard_info(root / split / name)[1] for name in sizes}


def checksum(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe_shard(path: Path, digest: str = "") -> tuple[dict[str, Any], ShardInfo]:
    digest = digest or checksum(
        path
    )  # first, since a disk failure raises here but kills the process in mapped memory
    info, count = read_shard_info(path)
    return {
        "name": path.name,
        "scenes": count,
        "bytes": path.stat().st_size,
        "sha256": digest,
    }, info


def _summarize(shards: list[tuple[dict[str, Any], ShardInfo]]) -> dict[str, Any]:
    entries = [entry for entry, _ in shards]
    total = {key: sum(entry[key] for entry in entries) for key in ("scenes", "bytes")}
    skipped = [
        {"input": name, "reason": reason} for _, info in shards for name, reason in info.skipped
    ]
    return {
        "source": sorted({info.source for _, info in shards}),
        **total,
        "skipped": skipped,
        "shards": entries,
    }


def make_manifest(root: Path, known: Mapping[Path, str] | None = None) -> dict[str, Any]:
    """The content of `manifest.json`: counts, sizes, checksums (some are `known`) and skipped inputs."""
    known, splits = known or {}, {}
    for split in store_splits(root):
        paths = [root / split / name for name in shard_sizes(root / split)]
        splits[split] = _summarize([_describe_shard(path, known.get(path, "")) for path in paths])
    if not splits:
        raise StoreError(
            f"{root}: no store here (no <split>/*.arrow); make one with `trajformer preprocess`"
        )
    manifest: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "splits": splits}
    if records := {path.name: checksum(path) for path in _records(root)}:
        manifest["records"] = records
    return manifest


def write_manifest(root: Path, known: Mapping[Path, str] | None = None) -> dict[str, Any]:
    """Write `manifest.json`; arguments and result as for `make_manifest`."""
    manifest = make_manifest(root, known)
    write_atomically(root / MANIFEST, _with_checksum(manifest))
    return manifest


def _records(root: Path) -> list[Path]:
    """The files that state how a store was made from other stores."""
    return [root / name for name in (MERGED, RESAMPLED) if (root / name).is_file()]


def _text(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=1, sort_keys=True) + "\n"


def _with_checksum(manifest: dict[str, Any]) -> str:
    rest = _text(manifest).removeprefix("{\n")
    return f'{{\n "checksum": "{zlib.crc32(rest.encode()):08x}",\n{rest}'


def read_manifest(root: Path) -> dict[str, Any]:
    """The content of `manifest.json` (StoreError: the file is missing, is not a manifest, or has another schema version)."""
    path = root / MANIFEST
    try:
        text = read_file(path, MAX_BYTES).decode()
        head = _CHECKSUM.match(text)  # earlier versions wrote none
        if head and zlib.crc32(text[head.end() :].encode()) != int(head[1], 16):
            raise ValueError("its checksum differs")
        manifest = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(
            f"{path}: no readable manifest ({error}); run `trajformer preprocess`"
        ) from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path}: schema_version {version}, this software reads {SCHEMA_VERSION}: preprocess again"
        )

    def check(position: str, value: Any, types: dict[str, type]) -> None:
        for name, expected in types.items():
            found: Any = value.get(name) if isinstance(value, dict) else None
            if type(found) is not expected or (
                isinstance(found, int) and not 0 <= found < MAX_COUNT
            ):
                raise StoreError(
                    f"{path}: {position}: {name}: not a valid manifest entry; run `trajformer preprocess` again"
                )

    manifest.pop("checksum", None)
    check("manifest", manifest, {"splits": dict})
    for split, entry in manifest["splits"].items():
        check(split, entry, _SPLIT)
        for part, types in _PARTS.items():
            for number, item in enumerate(entry[part]):
                check(f"{split}: {part}[{number}]", item, types)
    return manifest


def verify_store(
    root: Path, progress: Callable[[Iterator[Path], int], Iterator[Path]]
) -> list[str]:
    """Compare every shard with the manifest, validate every scene, and return one line for each problem.

    `progress` wraps an iterator of a known length, for a progress bar. Raises StoreError: there is no manifest.
    """
    content = read_manifest(root)
    manifest = content["splits"]
    listed = {
        root / split / entry["name"]: entry
        for split, value in manifest.items()
        for entry in value["shards"]
    }
    on_disk = {
        root / split / name: None
        for split in store_splits(root)
        for name in shard_sizes(root / split)
    }
    problems = [
        f"{path.parent.name}/{path.name}: on disk but not in the manifest"
        for path in on_disk
        if path not in listed
    ]
    problems += [
        f"{path}: listed in the manifest but missing" for path in listed if path not in on_disk
    ]
    paths = [path for path in listed if path in on_disk]
    shards: dict[str, list[tuple[dict[str, Any], ShardInfo]]] = {split: [] for split in manifest}
    seen: dict[str, set[str]] = {split: set() for split in manifest}
    for path in progress(iter(paths), len(paths)):
        split = path.parent.name
        try:
            entry, info = _describe_shard(path)
            shards[split].append((entry, info))
            different = [
                key for key in ("sha256", "scenes", "bytes") if entry[key] != listed[path][key]
            ]
            names = ["checksum"] if "sha256" in different else different
            problems += [f"{path}: {name} differs from the manifest" for name in names]
            problems += _invalid_scenes(Shard(path), seen[split])
        except (StoreError, OSError) as error:
            problems.append(str(error))
    if not problems:
        wrong = [split for split in manifest if manifest[split] != _summarize(shards[split])]
        problems += [
            f"{root / MANIFEST}: {split}: does not agree with its shards" for split in wrong
        ]
        records = {path.name: checksum(path) for path in _records(root)}
        different = records.items() ^ content.get("records", records).items()
        problems += [
            f"{root / name}: checksum differs from the manifest" for name in sorted(dict(different))
        ]
    exact = content.keys() <= _FIELDS and (root / MANIFEST).read_text() in (
        _text(content),
        _with_checksum(content),
    )
    if not problems and not exact:
        problems.append(f"{root / MANIFEST}: has been changed")
    return problems


def _invalid_scenes(shard: Shard, seen: set[str]) -> list[str]:
    """Problems of the scenes of a shard; adds their ids to `seen`, the ids in the split so far."""
    problems = []
    for row in range(len(shard)):
        try:
            scene = shard.scene(row).validate()
            if scene.scene_id in seen:
                problems.append(
                    f"{shard.path}: row {row}: scene {scene.scene_id}: occurs twice in its split"
                )
            seen.add(scene.scene_id)
        except StoreError as error:
            problems.append(str(error))
        except (SceneError, ValueError) as error:
            problems.append(f"{shard.path}: row {row}: {error}")
    return problems
