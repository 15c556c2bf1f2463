"""Raw data to stores, and looking at stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from trajformer.commands.files import bars, make_folder
from trajformer.errors import StoreError
from trajformer.manifest import read_manifest, verify_store
from trajformer.shard import SCHEMA_VERSION

if TYPE_CHECKING:
    from data_prep.reader import Reader


def synthesize(out: Path, scenes: int, seed: int, workers: int) -> None:
    """Write simulated scenes in the official Argoverse 2 raw layout and say how many each split has."""
    from data_prep.synthetic import synthesize as simulate

    make_folder(out)
    counts = simulate(out, scenes, seed, workers=workers, progress=bars())
    print(", ".join(f"{split} {count}" for split, count in counts.items()) + f" scenes in {out}")


def preprocess(reader: Reader, raw: Path, store: Path, **options: Any) -> None:
    """Prepare a raw data set and say what was kept, what was skipped and why."""
    from data_prep.prepare import PrepareOptions, prepare

    summary = prepare(reader, raw, store, PrepareOptions(progress=bars(), **options))
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
        return iter(tqdm(items, total=total, unit="shard", desc="verify", dynamic_ncols=True, disable=not bars()))

    _manifest(store)
    faults = verify_store(store, progress)
    for fault in faults:
        print(fault)
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults, the first"
        raise StoreError(f"{store}: {count}: {faults[0]}")
    print(f"{store}: sound")
