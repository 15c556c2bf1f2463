"""The manifest of a store, `manifest.json`: a summary of its shards with checksums.

Its first entry is a checksum of the text after it, so that a change of the manifest is noticed.
"""

import hashlib
import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trajformer.errors import SceneError, StoreError
from trajformer.scenes.files import read_file, write_atomically
from trajformer.scenes.shard import SCHEMA_VERSION, Shard, ShardInfo, read_shard_info

MANIFEST = "manifest.json"
MAX_BYTES = 1 << 30  # of a manifest
MAX_COUNT = 2**60  # of scenes, bytes and shards
MERGED = "merged.json"  # the sources of a store that `trajformer store merge` made
RESAMPLED = "resampled.json"  # the source of a store that `trajformer store resample` made
NOT_LISTED = "on disk but not in the manifest"
MISSING = "listed in the manifest but missing"
_CHECKSUM = re.compile(r'\{\n "checksum": "([0-9a-f]{8})",\n')  # CRC-32 of the text after it
_FIELDS = {"schema_version", "splits", "records"}
_SPLIT_TYPES: dict[str, type] = {
    "scenes": int,
    "bytes": int,
    "source": list,
    "skipped": list,
    "shards": list,
}
_OPTIONAL_TYPES: dict[str, type] = {"warnings": list, "dropped": list}
_SHARD_TYPES: dict[str, type] = {"name": str, "scenes": int, "bytes": int, "sha256": str}
_SKIPPED_TYPES: dict[str, type] = {"input": str, "reason": str}
_WARNING_TYPES: dict[str, type] = {"input": str, "message": str}
_DROPPED_TYPES: dict[str, type] = {"cause": str, "count": int, "file": str, "files": int}

Manifest = dict[str, Any]
ShardEntry = dict[str, Any]  # name, scenes, bytes and sha256 of a shard


# ---- files of a store ------------------------------------------------------------------------


def store_splits(root: Path | str) -> list[str]:
    """Names of the splits that have shards."""
    return sorted(folder.name for folder in Path(root).glob("*/") if shard_sizes(folder))


def shard_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each shard in the folder of a split, by file name, in order of the shard numbers."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    sizes = {}
    for entry in entries:
        is_shard = entry.name.endswith(".arrow") and not entry.name.startswith(".")
        if is_shard and entry.is_file():
            sizes[entry.name] = entry.stat().st_size
    names = sorted(sizes, key=lambda name: (len(name), name))
    return {name: sizes[name] for name in names}


def shard_files(root: Path) -> list[Path]:
    """Paths of all shards, by split and number."""
    paths = []
    for split in store_splits(root):
        paths += [root / split / name for name in shard_sizes(root / split)]
    return paths


def _records(root: Path) -> list[Path]:
    """The files that state how a store was made from other stores."""
    return [root / name for name in (MERGED, RESAMPLED) if (root / name).is_file()]


def checksum(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- writing ---------------------------------------------------------------------------------


def write_manifest(root: Path, known: Mapping[Path, str] | None = None) -> Manifest:
    """Write `manifest.json`; arguments and result as for `make_manifest`."""
    manifest = make_manifest(root, known)
    write_atomically(root / MANIFEST, manifest_text(manifest))
    return manifest


def make_manifest(root: Path, known: Mapping[Path, str] | None = None) -> Manifest:
    """The content of `manifest.json`: counts, sizes, checksums, skipped inputs, dropped details.

    Shards in `known` have this SHA-256. Raises StoreError: there is no shard, or one is damaged.
    """
    known = known or {}
    splits = {}
    for split in store_splits(root):
        shards = []
        for name in shard_sizes(root / split):
            path = root / split / name
            shards.append(_describe_shard(path, known.get(path, "")))
        splits[split] = _summarize(shards)
    if not splits:
        reason = "no store here (no <split>/*.arrow)"
        raise StoreError(f"{root}: {reason}; make one with `trajformer preprocess`")
    manifest: Manifest = {"schema_version": SCHEMA_VERSION, "splits": splits}
    records = _record_checksums(root)
    if records:
        manifest["records"] = records
    return manifest


def _record_checksums(root: Path) -> dict[str, str]:
    return {path.name: checksum(path) for path in _records(root)}


def _describe_shard(path: Path, sha256: str = "") -> tuple[ShardEntry, ShardInfo]:
    """The entry of a shard and its metadata; its checksum may be known already."""
    # The checksum comes first: a disk failure raises an error here, but it kills the process when
    # mapped memory is read.
    sha256 = sha256 or checksum(path)
    info, num_scenes = read_shard_info(path)
    entry = {
        "name": path.name,
        "scenes": num_scenes,
        "bytes": path.stat().st_size,
        "sha256": sha256,
    }
    return entry, info


def _summarize(shards: list[tuple[ShardEntry, ShardInfo]]) -> dict[str, Any]:
    """The entry of a split with these shards."""
    entries = []
    sources = set()
    skipped = []
    warnings = []
    for entry, info in shards:
        entries.append(entry)
        sources.add(info.source)
        skipped += [{"input": name, "reason": reason} for name, reason in info.skipped]
        warnings += [{"input": name, "message": message} for name, message in info.warnings]
    summary = {
        "source": sorted(sources),
        "scenes": sum(entry["scenes"] for entry in entries),
        "bytes": sum(entry["bytes"] for entry in entries),
        "skipped": skipped,
        "shards": entries,
    }
    if warnings:
        summary["warnings"] = warnings
    dropped = summarize_dropped(info for _, info in shards)
    if dropped:
        summary["dropped"] = dropped
    return summary


def summarize_dropped(infos: Iterable[ShardInfo]) -> list[dict[str, Any]]:
    """Dropped details of shards by cause: their number, the first file, and the number of files.

    Shards with scenes of one file report the same details, which count once.
    """
    counts: dict[str, dict[str, int]] = defaultdict(dict)  # by cause and file
    for info in infos:
        for file, cause, number in info.dropped:
            counts[cause][file] = number
    entries = []
    for cause, by_file in sorted(counts.items()):
        entry = {
            "cause": cause,
            "count": sum(by_file.values()),
            "file": min(by_file),
            "files": len(by_file),
        }
        entries.append(entry)
    return entries


def manifest_text(manifest: Manifest) -> str:
    """The text of `manifest.json`, with its checksum."""
    content = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    rest = content.removeprefix("{\n")
    return f'{{\n "checksum": "{zlib.crc32(rest.encode()):08x}",\n{rest}'


# ---- reading ---------------------------------------------------------------------------------


def read_manifest(root: Path) -> Manifest:
    """The content of `manifest.json`.

    Raises StoreError: the file is missing, is not a manifest, or has another schema version.
    """
    path = root / MANIFEST
    try:
        text = read_file(path, MAX_BYTES).decode()
        manifest = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(
            f"{path}: no readable manifest ({error}); run `trajformer preprocess`"
        ) from error
    version = None
    if isinstance(manifest, dict):
        version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        versions = f"schema_version {version}, this software reads {SCHEMA_VERSION}"
        raise StoreError(f"{path}: {versions}: preprocess again")
    head = _CHECKSUM.match(text)
    if head is None or zlib.crc32(text[head.end() :].encode()) != int(head[1], 16):
        reason = "no readable manifest (its checksum differs)"
        raise StoreError(f"{path}: {reason}; run `trajformer preprocess`")
    del manifest["checksum"]
    _check_types(path, manifest)
    return manifest


def _check_types(path: Path, manifest: Manifest) -> None:
    """Check the type of each entry (StoreError: names an entry of another type)."""
    _check_entry(path, "manifest", manifest, {"splits": dict})
    if "records" in manifest:
        _check_entry(path, "manifest", manifest, {"records": dict})
    for split, entry in manifest["splits"].items():
        _check_entry(path, split, entry, _SPLIT_TYPES)
        for number, shard in enumerate(entry["shards"]):
            _check_entry(path, f"{split}: shards[{number}]", shard, _SHARD_TYPES)
            for name in (split, shard["name"]):
                if Path(name).parts != (name,) or name == "..":  # would be read elsewhere
                    raise StoreError(f"{path}: {name}: not the name of a file in the store")
        for number, skipped in enumerate(entry["skipped"]):
            _check_entry(path, f"{split}: skipped[{number}]", skipped, _SKIPPED_TYPES)
        for name in _OPTIONAL_TYPES.keys() & entry.keys():
            _check_entry(path, split, entry, {name: _OPTIONAL_TYPES[name]})
        for number, warning in enumerate(entry.get("warnings", [])):
            _check_entry(path, f"{split}: warnings[{number}]", warning, _WARNING_TYPES)
        for number, dropped in enumerate(entry.get("dropped", [])):
            _check_entry(path, f"{split}: dropped[{number}]", dropped, _DROPPED_TYPES)


def _check_entry(path: Path, position: str, entry: Any, types: dict[str, type]) -> None:
    for name, expected in types.items():
        value: Any = None
        if isinstance(entry, dict):
            value = entry.get(name)
        is_valid = type(value) is expected
        if is_valid and expected is int:
            is_valid = 0 <= value < MAX_COUNT
        if not is_valid:
            reason = "not a valid manifest entry; run `trajformer preprocess` again"
            raise StoreError(f"{path}: {position}: {name}: {reason}")


def read_finished(root: Path) -> Manifest:
    """The manifest of a finished store.

    Raises StoreError: there is no manifest, or it does not list exactly the shards on disk.
    """
    manifest = read_manifest(root)
    if not manifest_matches_files(root, manifest):
        reason = "manifest.json does not list the shards on disk"
        raise StoreError(f"{root}: {reason}: finish the store first")
    return manifest


def manifest_matches_files(root: Path, manifest: Manifest) -> bool:
    """True if the manifest lists exactly the shards on disk, by name and size."""
    listed = {}
    for split, entry in manifest["splits"].items():
        if entry["shards"]:
            listed[split] = _listed_sizes(entry["shards"])
    return listed == {split: shard_sizes(root / split) for split in store_splits(root)}


def _listed_sizes(shards: list[ShardEntry]) -> dict[str, int]:
    """Bytes of the listed shards, by file name."""
    return {shard["name"]: shard["bytes"] for shard in shards}


def count_scenes(root: Path, split: str, sizes: dict[str, int]) -> dict[str, int]:
    """Number of scenes in every shard of a split with these `shard_sizes`, by file name.

    The numbers come from the manifest, or from the shards while a store is prepared, when there is
    no manifest. Raises StoreError: a shard is not as in the manifest, truncated, damaged, not a
    shard, a copy of another one, or has another schema version.
    """
    try:
        shards = read_manifest(root)["splits"].get(split, {"shards": []})["shards"]
    except StoreError:
        return _count_without_manifest(root / split, sizes)
    listed = _listed_sizes(shards)
    if sizes == listed:
        counts = {shard["name"]: shard["scenes"] for shard in shards}
        return {name: counts[name] for name in sizes}  # in the order of the shard numbers
    if sizes == shard_sizes(root / split):
        _refuse_difference(root / split, sizes, listed)
    return _count_without_manifest(root / split, sizes)  # shards are being written


def count_skipped(root: Path, split: str) -> int:
    """Number of inputs of a split without a scene; they are listed in the manifest, or the shards.

    Raises StoreError: a shard is damaged, and there is no manifest.
    """
    try:
        return len(read_manifest(root)["splits"][split]["skipped"])
    except (StoreError, KeyError):
        infos = [read_shard_info(root / split / name)[0] for name in shard_sizes(root / split)]
        return sum(len(info.skipped) for info in infos)


def _refuse_difference(folder: Path, sizes: dict[str, int], listed: dict[str, int]) -> None:
    """Raise StoreError: there are other shards than in the manifest."""
    for name in sizes and sorted(sizes.keys() | listed.keys()):  # no shard is no split
        path = folder / name
        if name not in listed:
            raise StoreError(f"{path}: {NOT_LISTED}; remove it, or run `trajformer preprocess`")
        if name not in sizes:
            raise StoreError(f"{path}: {MISSING}; run `trajformer preprocess` again")
        if sizes[name] != listed[name]:
            read_shard_info(path)  # damage is a better reason
            raise StoreError(f"{path}: {sizes[name]} bytes, {listed[name]} in the manifest")


def _count_without_manifest(folder: Path, sizes: dict[str, int]) -> dict[str, int]:
    counts = {}
    names: dict[tuple[str, int], str] = {}
    for name, num_bytes in sizes.items():
        info, counts[name] = read_shard_info(folder / name)
        first = names.setdefault((info.inputs, num_bytes), name)
        if info.inputs and first != name:
            raise StoreError(f"{folder / name}: a copy of {first}; remove it")
    return counts


# ---- verification ----------------------------------------------------------------------------


def verify_store(
    root: Path, progress: Callable[[Iterator[Path], int], Iterator[Path]]
) -> list[str]:
    """Compare every shard with the manifest, validate every scene, and return a line per problem.

    `progress` wraps an iterator of a known length, for a progress bar. Raises StoreError: there is
    no manifest.
    """
    manifest = read_manifest(root)
    listed: dict[Path, ShardEntry] = {}
    for split, split_entry in manifest["splits"].items():
        for shard_entry in split_entry["shards"]:
            listed[root / split / shard_entry["name"]] = shard_entry
    on_disk = shard_files(root)
    problems = []
    for path in on_disk:
        if path not in listed:
            problems.append(f"{path.parent.name}/{path.name}: {NOT_LISTED}")
    present = set(on_disk)
    for path in listed:
        if path not in present:
            problems.append(f"{path}: {MISSING}")

    paths = [path for path in listed if path in present]
    shards: dict[str, list[tuple[ShardEntry, ShardInfo]]] = defaultdict(list)  # by split
    scene_ids: dict[str, set[str]] = defaultdict(set)  # by split
    for path in progress(iter(paths), len(paths)):
        split = path.parent.name
        try:
            entry, info = _describe_shard(path)
            shards[split].append((entry, info))
            problems += _differences(path, entry, listed[path])
            problems += _invalid_scenes(Shard(path), scene_ids[split])
        except (StoreError, OSError) as error:
            problems.append(str(error))
    # A damaged shard would be reported a second time by its summary.
    return problems or _summary_problems(root, manifest, shards)


def _differences(path: Path, entry: ShardEntry, listed: ShardEntry) -> list[str]:
    """Problems of a shard with this entry that the manifest lists with another one."""
    if entry["sha256"] != listed["sha256"]:
        names = ["checksum"]  # other content explains the other differences
    else:
        names = [name for name in ("scenes", "bytes") if entry[name] != listed[name]]
    return [f"{path}: {name} differs from the manifest" for name in names]


def _summary_problems(
    root: Path,
    manifest: Manifest,
    shards: Mapping[str, list[tuple[ShardEntry, ShardInfo]]],
) -> list[str]:
    """Problems of a manifest with the listed shards: totals, records, and the text itself."""
    path = root / MANIFEST
    problems = []
    for split, entry in manifest["splits"].items():
        if entry != _summarize(shards[split]):
            problems.append(f"{path}: {split}: does not agree with its shards")
    actual = _record_checksums(root)
    listed = manifest.get("records", {})
    for name in sorted(actual.keys() | listed.keys()):
        if actual.get(name) != listed.get(name):
            problems.append(f"{root / name}: checksum differs from the manifest")
    is_exact = manifest.keys() <= _FIELDS and path.read_text() == manifest_text(manifest)
    if not problems and not is_exact:
        problems.append(f"{path}: has been changed")
    return problems


def _invalid_scenes(shard: Shard, seen: set[str]) -> list[str]:
    """Problems of the scenes of a shard; adds their ids to `seen`, the ids in the split so far."""
    problems = []
    for row in range(len(shard)):
        where = f"{shard.path}: row {row}"
        try:
            scene = shard.scene(row).validate()
            if scene.scene_id in seen:
                problems.append(f"{where}: scene {scene.scene_id}: occurs twice in its split")
            seen.add(scene.scene_id)
        except StoreError as error:
            problems.append(str(error))
        except (SceneError, ValueError) as error:
            problems.append(f"{where}: {error}")
    return problems
