"""Looking at stores, checking them, merging them, taking a scene out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from trajformer.cli.files import bars, make_room
from trajformer.cli.stopping import stops_cleanly
from trajformer.errors import StoreError
from trajformer.scenes.manifest import MANIFEST, manifest_matches_files, read_manifest, shard_sizes, verify_store
from trajformer.scenes.scene import AgentRole, Scene
from trajformer.scenes.shard import SCHEMA_VERSION
from trajformer.scenes.store import SceneStore, store_splits

_HEAD = ("index", "scene", "city", "agents", "focal", "scored", "context", "observed", "future", "polylines", "kB")


def info(store: Path) -> None:
    """Print what every split holds, read from the shards themselves, so that an unfinished store can be looked at."""
    splits, note = _splits(store), ""
    if not (store / MANIFEST).exists():
        note = "no manifest.json: it is being prepared, or preparing it was interrupted; so far it has"
    elif not manifest_matches_files(store, read_manifest(store)):
        note = f"manifest.json does not list these shards: see `trajformer store verify {store}`; it has"
    print(f"{store}: schema version {SCHEMA_VERSION}" + (f"; {note}" if note else ""))
    for split in splits:
        _print_split(store, split)


def _print_split(store: Path, split: str) -> None:
    bytes_of = shard_sizes(store / split)
    shards = [(shard.info, shard.sizes()) for shard in SceneStore(store, split).shards()]
    sizes = np.concatenate([sizes for _, sizes in shards])
    size, scenes = sum(bytes_of.values()), len(sizes)
    each = f" ({size / scenes / 1e3:.1f} kB a scene)" if scenes else ""
    print(f"  {split}: {scenes} scenes, {size / 1e6:.1f} MB{each}, {len(shards)} shard{'s' * (len(shards) != 1)}")
    sources, software = (sorted({getattr(told, name) for told, _ in shards}) for name in ("source", "software"))
    print(f"    from {', '.join(sources)}, prepared by version {', '.join(software)}")
    skipped = [entry for told, _ in shards for entry in told.skipped]
    if scenes:
        median, largest = np.median(sizes, 0), sizes.max(0)
        names = ("agents", "polylines", "points")
        amounts = (f"{name} {middle:.0f} (at most {most})" for name, middle, most in zip(names, median, largest, strict=True))
        print(f"    in the median scene: {', '.join(amounts)}")
    print(f"    {len(skipped)} skipped")
    for name, reason in skipped:
        print(f"    skipped {name}: {reason}")


def _splits(store: Path, split: str | None = None) -> list[str]:
    """The splits to look at: one, or all that there are."""
    if not store.is_dir():
        raise StoreError(f"{store}: no such store; make one with `trajformer preprocess`")
    splits = store_splits(store)
    if not splits:
        raise StoreError(f"{store}: no store here (no <split>/*.arrow); make one with `trajformer preprocess`")
    return [split] if split is not None else splits


def head(store: Path, split: str | None, count: int) -> None:
    """Print a table of the first scenes of one split or of every one."""
    for name in _splits(store, split):
        scenes = SceneStore(store, name)
        print(f"{name}: {min(count, len(scenes))} of {len(scenes)} scenes")
        _print_table([_HEAD, *(_row(index, *first) for index, first in enumerate(_first(scenes, count)))])


def _first(scenes: SceneStore, count: int) -> Iterator[tuple[Scene, int]]:
    pairs = ((shard.scene(row), size) for shard in scenes.shards() for row, size in enumerate(shard.row_bytes().tolist()))
    return islice(pairs, count)


def _row(index: int, scene: Scene, size: int) -> tuple[str, ...]:
    roles = np.bincount(scene.agent_role, minlength=len(AgentRole))
    counts = (scene.num_agents, *(roles[role] for role in (AgentRole.FOCAL, AgentRole.SCORED, AgentRole.CONTEXT)))
    future = f"{scene.num_future}" if scene.num_steps > scene.num_history else f"({scene.num_future})"
    numbers = (*map(str, counts), str(scene.num_history), future, str(scene.num_polylines), f"{size / 1e3:.1f}")
    return str(index), scene.scene_id, scene.city or "-", *numbers


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Scene and city to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)]
        cells[1:3] = (f"{cell:<{width}}" for cell, width in zip(row[1:3], widths[1:3], strict=True))
        print("  " + "  ".join(cells))


def _bar(what: str) -> Callable[[Iterator[Any], int], Iterator[Any]]:
    def progress(items: Iterator[Any], total: int) -> Iterator[Any]:
        return iter(tqdm(items, total=total, unit="shard", desc=what, dynamic_ncols=True, disable=not bars()))

    return progress


def verify(store: Path) -> None:
    """Check every shard and scene.

    Raises:
        StoreError: there are faults; all of them have been printed.
    """
    _splits(store)
    faults = verify_store(store, _bar("verify"))
    for fault in faults:
        print(fault)
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults, the first"
        raise StoreError(f"{store}: {count}: {faults[0]}")
    print(f"{store}: sound")


def merge(stores: Sequence[Path], out: Path) -> None:
    """Make one store of several and print what it holds."""
    from trajformer.scenes.merge import merge_stores

    with stops_cleanly("store", "copied shards are kept: run the same command again to go on"):
        manifest = merge_stores(stores, out, _bar("merge"))
    for split, entry in manifest["splits"].items():
        shards, skipped = len(entry["shards"]), len(entry["skipped"])
        print(f"{split}: {entry['scenes']} scenes, {entry['bytes'] / 1e6:.1f} MB, {shards} shards, {skipped} skipped")
    print(f"{out}: merged from {len(stores)} stores")


def export(store: Path, split: str | None, scene_id: str, out: Path) -> None:
    """Write one scene to a file of its own.

    Raises:
        StoreError: no split has the scene, or several do and none was named.
    """
    from trajformer.scenes.export import export_scene

    splits = [SceneStore(store, name) for name in _splits(store, split)]
    found = [(scenes, index) for scenes in splits for index in scenes.indices([scene_id]).values()]
    if not found:
        raise StoreError(f"{store}: no scene {scene_id} in {', '.join(scenes.split for scenes in splits)}")
    if len(found) > 1:
        names = " and in ".join(scenes.split for scenes, _ in found)
        raise StoreError(f"{store}: there is a scene {scene_id} in {names}: say which with --split")
    scenes, index = found[0]
    scene = scenes[index]
    make_room(out)
    export_scene(scene, out)
    print(f"{out}: scene {scene_id} of {scenes.split}, {scene.num_agents} agents, {scene.num_polylines} polylines")
