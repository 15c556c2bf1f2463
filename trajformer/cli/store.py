"""`trajformer store`: print, check and merge stores, and export a scene."""

import textwrap
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import Namespace
from jsonargparse.typing import PositiveFloat, PositiveInt
from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs, skipped_lines
from trajformer.cli.parsing import Parser, add_overwrite, new_parser
from trajformer.errors import StoreError
from trajformer.scenes.manifest import (
    MANIFEST,
    manifest_matches_files,
    read_manifest,
    shard_sizes,
    verify_store,
)
from trajformer.scenes.scene import METRES, AgentRole, Scene
from trajformer.scenes.shard import SCHEMA_VERSION
from trajformer.scenes.spec import CLOCK, DataSpec
from trajformer.scenes.store import SceneStore, store_splits

ACTIONS = {
    "info": "Print counts and sizes. Also prints the source of the scenes, the skipped scenes, and the size of a typical scene. "
    "Works while the store is being prepared.",
    "head": "Print a table of the first scenes: agents by role, observed and future steps (in brackets if the recording ends "
    "with the observed steps), polylines, and kB in the store.",
    "verify": "Check every byte and scene. Files are compared with the checksums of the manifest, and scenes are validated.",
    "merge": "Merge several stores. They may come from several machines or data sets. Shards are copied unchanged with new "
    "numbers, and splits of the same name are joined. Nothing is written if a scene id occurs twice in a split. To resume an "
    "interrupted merge, run the same command again. merged.json lists the origin of each shard.",
    "resample": "Write a store with another clock or shorter scenes. Scenes for a model need the period, history and "
    "horizon of its training scenes. Positions and velocities are interpolated linearly, headings along the shorter arc, between "
    "steps that are both valid. The last observed step is kept. Scenes that are too short are listed as skipped.",
    "export-scene": "Write one scene to a file with all its fields. JSON is for reading: one line per agent, polyline and edge, "
    "kinds by name. npz holds numpy arrays named as the fields of trajformer.Scene; load it with numpy.load, without pickle. "
    "Positions are in metres relative to `origin`, which is in the frame of the city; headings are in radians, counter-clockwise "
    "from +x; entries that are not valid are zero. Numbers are exact.",
}


def store_parser(action: str = "") -> Parser:
    """info|head|verify STORE, merge STORE... --out STORE, resample STORE OUT, export-scene STORE --scene ID --out FILE."""
    every = "Print, check, merge or resample stores, or export a scene. `trajformer store ACTION --help` describes an action."
    parser = new_parser(ACTIONS.get(action, every))
    chosen = [action] if action in ACTIONS else list(ACTIONS)
    summaries = "; ".join(
        f"{name}: {ACTIONS[name].split('. ')[0].rstrip('.').lower()}" for name in chosen
    )
    parser.add_argument("action", choices=chosen, help=summaries)
    if action == "merge":
        parser.add_argument(
            "stores", nargs="+", type=Path, metavar="store", help="finished stores, in this order"
        )
        parser.add_argument(
            "--out", type=Path, required=True, help="folder of the new store: new or empty"
        )
        return parser
    parser.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    if action == "resample":
        parser.add_argument("out", type=Path, help="folder of the new store: new or empty")
        parser.add_argument(
            "--period-s", type=PositiveFloat, help="seconds between steps (default: unchanged)"
        )
        parser.add_argument(
            "--num-history", type=PositiveInt, help="observed steps, the last ones (default: all)"
        )
        parser.add_argument(
            "--num-future", type=PositiveInt, help="steps to predict, the first ones (default: all)"
        )
    if action in ("head", "export-scene"):
        parser.add_argument("--split", help="only this split (default: all)")
    if action == "head":
        parser.add_argument(
            "--count", type=PositiveInt, default=10, help="number of scenes per split"
        )
    if action == "export-scene":
        parser.add_argument("--scene", required=True, help="id of the scene")
        parser.add_argument(
            "--out",
            type=Path,
            required=True,
            help="file to write; the suffix .json or .npz selects the format",
        )
        add_overwrite(parser)
    return parser


def run_store(args: Namespace) -> None:
    """`trajformer store`."""
    actions = {
        "info": info,
        "head": head,
        "verify": verify,
        "merge": merge,
        "resample": resample,
        "export-scene": export,
    }
    actions[args.action](args)


def info(args: Namespace) -> None:
    """Print the content of all splits. It is read from the shards, so the store may be unfinished."""
    store, note = args.store, ""
    splits = _splits(store)
    if not (store / MANIFEST).exists():
        note = "; no manifest.json, the preparation is running or was interrupted; content so far"
    elif not manifest_matches_files(store, read_manifest(store)):
        note = f"; manifest.json does not list these shards, see `trajformer store verify {store}`; content"
    print(f"{store}: schema version {SCHEMA_VERSION}{note}")
    for split in splits:
        _print_split(store, split)


def _print_split(store: Path, split: str) -> None:
    bytes_of = shard_sizes(store / split)
    shards = [(shard.info, shard.sizes()) for shard in SceneStore(store, split).shards()]
    sizes = np.concatenate([sizes for _, sizes in shards])
    size, scenes = sum(bytes_of.values()), len(sizes)
    each = f" ({size / scenes / 1e3:.1f} kB a scene)" if scenes else ""
    print(
        f"  {split}: {scenes} scenes, {size / 1e6:.1f} MB{each}, {len(shards)} shard{'s' * (len(shards) != 1)}"
    )
    sources, software = (
        sorted({getattr(shard, name) for shard, _ in shards}) for name in ("source", "software")
    )
    lengths = f", lengths in {unit}" if (unit := SceneStore(store, split).unit) != METRES else ""
    print(f"    from {', '.join(sources)}, prepared by version {', '.join(software)}{lengths}")
    skipped = [entry for shard, _ in shards for entry in shard.skipped]
    if scenes:
        metrics = zip(
            ("agents", "polylines", "points"), np.median(sizes, 0), sizes.max(0), strict=True
        )
        counts = (f"{name} {median:.0f} (at most {largest})" for name, median, largest in metrics)
        print(f"    in the median scene: {', '.join(counts)}")
        first = DataSpec.of(SceneStore(store, split)[0])
        clock = f"{first.num_history} steps observed, {first.num_future} to predict, {first.period_s} s apart"
        print(f"    first scene: {clock}, positions in {first.unit}")
    print(f"    {len(skipped)} skipped")
    for line in skipped_lines(skipped):
        print(f"    skipped {line}")


def _splits(store: Path, split: str | None = None) -> list[str]:
    """The given split, or all splits of the store."""
    if not store.is_dir():
        raise StoreError(f"{store}: no such store; make one with `trajformer preprocess`")
    splits = store_splits(store)
    if not splits:
        raise StoreError(
            f"{store}: not a store (no <split>/*.arrow); make one with `trajformer preprocess`"
        )
    return [split] if split is not None else splits


def head(args: Namespace) -> None:
    """Print a table of the first scenes for each split."""
    import pandas as pd

    for name in _splits(args.store, args.split):
        scenes = SceneStore(args.store, name)
        print(f"{name}: {min(args.count, len(scenes))} of {len(scenes)} scenes")
        pairs = (
            (shard.scene(row), size)
            for shard in scenes.shards()
            for row, size in enumerate(shard.row_bytes().tolist())
        )
        table = pd.DataFrame([_row(*pair) for pair in islice(pairs, args.count)])
        print(textwrap.indent(table.rename_axis(columns="index").to_string(), "  "))


def _row(scene: Scene, size: int) -> dict[str, object]:
    roles = np.bincount(scene.agent_role, minlength=len(AgentRole))
    return {
        "scene": scene.scene_id,
        "city": scene.city or "-",
        "agents": scene.num_agents,
        **{
            role.name.lower(): roles[role]
            for role in (AgentRole.FOCAL, AgentRole.SCORED, AgentRole.CONTEXT)
        },
        "observed": scene.num_history,
        "future": f"{scene.num_future}"
        if scene.num_steps > scene.num_history
        else f"({scene.num_future})",
        "polylines": scene.num_polylines,
        "kB": f"{size / 1e3:.1f}",
    }


def _bar(description: str) -> Callable[[Iterator[Any], int], Iterator[Any]]:
    def progress(items: Iterator[Any], total: int) -> Iterator[Any]:
        return iter(
            tqdm(
                items,
                total=total,
                unit="shard",
                desc=description,
                dynamic_ncols=True,
                disable=not bars(),
            )
        )

    return progress


def verify(args: Namespace) -> None:
    """Check every shard and scene (StoreError: the store has problems; all have been printed)."""
    _splits(args.store)
    problems = verify_store(args.store, _bar("verify"))
    for problem in problems:
        print(problem)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems, the first"
        raise StoreError(f"{args.store}: {count}: {problems[0]}")
    print(f"{args.store}: no problems")


def merge(args: Namespace) -> None:
    """Merge stores and print the content of the new store."""
    from trajformer.scenes.merge import merge_stores

    manifest = merge_stores(args.stores, args.out, _bar("merge"))
    _print_manifest(manifest)
    print(f"{args.out}: merged from {len(args.stores)} stores")


def _print_manifest(manifest: dict[str, Any]) -> None:
    for split, entry in manifest["splits"].items():
        shards, skipped = len(entry["shards"]), len(entry["skipped"])
        print(
            f"{split}: {entry['scenes']} scenes, {entry['bytes'] / 1e6:.1f} MB, {shards} shards, {skipped} skipped"
        )


def resample(args: Namespace) -> None:
    """Write a resampled store and print its content (StoreError: no option is given, see also `resample_store`)."""
    from trajformer.scenes.resample import resample_store

    clock = {name: args[name] for name in CLOCK if args[name] is not None}
    if not clock:
        raise StoreError("give at least one of --period-s, --num-history and --num-future")
    _splits(args.store)
    _print_manifest(resample_store(args.store, args.out, _bar("resample"), **clock))
    print(f"{args.out}: resampled from {args.store}")


def export(args: Namespace) -> None:
    """Write one scene to a file (StoreError: no split has the scene, or several splits have it and --split is not given)."""
    from trajformer.scenes.export import export_scene

    check_outputs(args, out="npz" if args.out.suffix == ".npz" else "json")
    splits = [SceneStore(args.store, name) for name in _splits(args.store, args.split)]
    matches = [
        (scenes, index) for scenes in splits for index in scenes.indices([args.scene]).values()
    ]
    if not matches:
        raise StoreError(
            f"{args.store}: no scene {args.scene} in {', '.join(scenes.split for scenes in splits)}"
        )
    if len(matches) > 1:
        names = " and in ".join(scenes.split for scenes, _ in matches)
        raise StoreError(f"{args.store}: scene {args.scene} is in {names}; choose with --split")
    scenes, index = matches[0]
    scene = scenes[index]
    export_scene(scene, args.out)
    print(
        f"{args.out}: scene {args.scene} of {scenes.split}, {scene.num_agents} agents, {scene.num_polylines} polylines"
    )
