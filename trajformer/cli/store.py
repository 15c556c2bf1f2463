"""`trajformer store`: print, check, merge and resample stores, and export a scene."""

import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs, dropped_lines, skipped_lines
from trajformer.cli.parsing import (
    Parser,
    PositiveFloat,
    PositiveInt,
    add_overwrite,
    add_variant,
    new_overview,
    new_parser,
)
from trajformer.errors import StoreError, one_line, shorten
from trajformer.scenes.manifest import (
    MANIFEST,
    read_manifest,
    shard_sizes,
    summarize_dropped,
    verify_store,
)
from trajformer.scenes.scene import METRES, AgentRole, Scene
from trajformer.scenes.shard import SCHEMA_VERSION
from trajformer.scenes.spec import CLOCK, DataSpec
from trajformer.scenes.store import SceneStore, store_splits

MAX_NAME = 100  # characters of a printed name
VARIANTS = {
    "info": (
        "Print counts and sizes. Also prints the source of the scenes, the skipped scenes, and "
        "the size of a typical scene. Works while the store is being prepared."
    ),
    "head": (
        "Print a table of the first scenes. Columns: agents by role, observed and future steps (in "
        "brackets if the recording ends with the observed steps), polylines, and kB in the store."
    ),
    "verify": (
        "Check every byte and scene. Files are compared with the checksums of the manifest, and "
        "scenes are validated."
    ),
    "merge": (
        "Merge several stores. They may come from several machines or data sets. Shards are copied "
        "unchanged with new numbers, and splits of the same name are joined. Nothing is written if "
        "a scene id occurs twice in a split. To resume an interrupted merge, run the same command "
        "again. merged.json lists the origin of each shard."
    ),
    "resample": (
        "Write a store with another clock or shorter scenes. Scenes for a model need the period, "
        "history and horizon of its training scenes. Positions and velocities are interpolated "
        "linearly, headings along the shorter arc, between steps that are both valid. The last "
        "observed step is kept. Scenes that are too short are listed as skipped."
    ),
    "export-scene": (
        "Write one scene to a file with all its fields. JSON is for reading: one line per agent, "
        "polyline and edge, kinds by name. npz holds numpy arrays named as the fields of "
        "trajformer.Scene; load it with numpy.load, without pickle. Positions are in metres "
        "relative to `origin`, which is in the frame of the city; headings are in radians, "
        "counter-clockwise from +x; entries that are not valid are zero. Numbers are exact."
    ),
}


def parser(action: str = "") -> Parser:
    """ACTION STORE, and the options of the action."""
    if not action:
        text = "Print, check, merge or resample stores, or export a scene."
        hint = "`trajformer store ACTION --help` describes an action and its options."
        return new_overview(f"{text} {hint}", "action", _summaries())
    made = new_parser(VARIANTS[action])
    add_variant(made, "action", action)
    if action == "merge":
        made.add_argument(
            "stores", nargs="+", type=Path, metavar="store", help="finished stores, in this order"
        )
        made.add_argument(
            "--out", type=Path, required=True, help="folder of the new store: new or empty"
        )
        return made
    made.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    add_options = {"head": _add_head, "resample": _add_resample, "export-scene": _add_export}
    if action in add_options:
        add_options[action](made)
    return made


def _summaries() -> dict[str, str]:
    """The first sentence about each action."""
    first_sentences = {name: text.split(". ")[0] for name, text in VARIANTS.items()}
    return {name: text.rstrip(".").lower() for name, text in first_sentences.items()}


def _add_head(made: Parser) -> None:
    _add_split(made)
    made.add_argument("--count", type=PositiveInt, default=10, help="number of scenes per split")


def _add_resample(made: Parser) -> None:
    made.add_argument("out", type=Path, help="folder of the new store: new or empty")
    made.add_argument(
        "--period-s", type=PositiveFloat, help="seconds between steps (default: unchanged)"
    )
    made.add_argument(
        "--num-history", type=PositiveInt, help="observed steps, the last ones (default: all)"
    )
    made.add_argument(
        "--num-future", type=PositiveInt, help="steps to predict, the first ones (default: all)"
    )


def _add_export(made: Parser) -> None:
    _add_split(made)
    made.add_argument("--scene", required=True, help="id of the scene")
    made.add_argument(
        "--out",
        type=Path,
        required=True,
        help="file to write; the suffix .json or .npz selects the format",
    )
    add_overwrite(made)


def _add_split(made: Parser) -> None:
    made.add_argument("--split", help="only this split (default: all)")


def run(args: Namespace) -> None:
    """Run an action."""
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
    """Print the content of all splits, read from the shards: the store may be unfinished."""
    store = args.store
    splits = _splits(store)
    note = ""
    if not (store / MANIFEST).exists():
        note = "; no manifest.json, the preparation is running or was interrupted; content so far"
    else:
        read_manifest(store)  # raises StoreError: it is damaged
    print(f"{store}: schema version {SCHEMA_VERSION}{note}")
    for split in splits:
        _print_split(store, split)


def _print_split(store: Path, split: str) -> None:
    scenes = SceneStore(store, split)
    shards = list(scenes.shards())
    sizes = np.concatenate([shard.sizes() for shard in shards])
    num_bytes = sum(shard_sizes(store / split).values())
    average = f" ({num_bytes / len(sizes) / 1e3:.1f} kB a scene)" if len(sizes) else ""
    files = "1 shard" if len(shards) == 1 else f"{len(shards)} shards"
    print(f"  {split}: {len(sizes)} scenes, {num_bytes / 1e6:.1f} MB{average}, {files}")

    sources = ", ".join(sorted({shorten(shard.info.source, MAX_NAME) for shard in shards}))
    versions = ", ".join(sorted({shorten(shard.info.software, MAX_NAME) for shard in shards}))
    lengths = "" if scenes.unit == METRES else f", lengths in {scenes.unit}"
    print(f"    from {sources}, prepared by version {versions}{lengths}")

    if len(sizes):
        _print_typical_scene(scenes[0], sizes)
    skipped = [entry for shard in shards for entry in shard.info.skipped]
    print(f"    {len(skipped)} skipped")
    for line in skipped_lines(skipped):
        print(f"    skipped {line}")
    warned = [entry for shard in shards for entry in shard.info.warnings]
    for line in skipped_lines(warned):
        print(f"    warning {line}")
    for line in dropped_lines(summarize_dropped(shard.info for shard in shards)):
        print(f"    dropped {line}")


def _print_typical_scene(first: Scene, sizes: np.ndarray) -> None:
    """`sizes` [B, 3] are the numbers of agents, polylines and points."""
    medians = np.median(sizes, 0)
    largest = sizes.max(0)
    counts = []
    for name, median, maximum in zip(
        ("agents", "polylines", "points"), medians, largest, strict=True
    ):
        counts.append(f"{name} {median:.0f} (at most {maximum})")
    print(f"    in the median scene: {', '.join(counts)}")
    spec = DataSpec.of(first)
    steps = f"{spec.num_history} steps observed, {spec.num_future} to predict"
    print(f"    first scene: {steps}, {spec.period_s} s apart, positions in {spec.unit}")


def _splits(store: Path, split: str | None = None) -> list[str]:
    """The given split, or all splits of the store."""
    hint = "make one with `trajformer preprocess`"
    if not store.is_dir():
        raise StoreError(f"{store}: no such store; {hint}")
    splits = store_splits(store)
    if not splits:
        raise StoreError(f"{store}: not a store (no <split>/*.arrow); {hint}")
    return splits if split is None else [split]


def head(args: Namespace) -> None:
    """Print a table of the first scenes for each split."""
    import pandas as pd

    for name in _splits(args.store, args.split):
        scenes = SceneStore(args.store, name)
        print(f"{name}: {min(args.count, len(scenes))} of {len(scenes)} scenes")
        table = pd.DataFrame(list(islice(_rows(scenes), args.count)))
        print(textwrap.indent(table.rename_axis(columns="index").to_string(), "  "))


def _rows(scenes: SceneStore) -> Iterator[dict[str, object]]:
    """The row of each scene in the table of `head`."""
    for shard in scenes.shards():
        for index, num_bytes in enumerate(shard.row_bytes().tolist()):
            yield _row(shard.scene(index), num_bytes)


def _row(scene: Scene, num_bytes: int) -> dict[str, object]:
    roles = np.bincount(scene.agent_role, minlength=len(AgentRole))
    has_future = scene.num_steps > scene.num_history
    return {
        "scene": shorten(scene.scene_id, MAX_NAME),
        "city": shorten(scene.city, MAX_NAME) or "-",
        "agents": scene.num_agents,
        "focal": roles[AgentRole.FOCAL],
        "scored": roles[AgentRole.SCORED],
        "context": roles[AgentRole.CONTEXT],
        "observed": scene.num_history,
        "future": str(scene.num_future) if has_future else f"({scene.num_future})",
        "polylines": scene.num_polylines,
        "kB": f"{num_bytes / 1e3:.1f}",
    }


def _bar(description: str) -> Callable[[Iterator[Any], int], Iterator[Any]]:
    """A function that shows a progress bar over shards."""

    def progress(shards: Iterator[Any], total: int) -> Iterator[Any]:
        bar = tqdm(
            shards,
            total=total,
            unit="shard",
            desc=description,
            dynamic_ncols=True,
            disable=not bars(),
        )
        return iter(bar)

    return progress


def verify(args: Namespace) -> None:
    """Check every shard and scene (StoreError: the store has problems; all have been printed)."""
    _splits(args.store)
    problems = verify_store(args.store, _bar("verify"))
    for problem in problems:
        print(one_line(problem))
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
        size = f"{entry['scenes']} scenes, {entry['bytes'] / 1e6:.1f} MB"
        print(f"{split}: {size}, {len(entry['shards'])} shards, {len(entry['skipped'])} skipped")


def resample(args: Namespace) -> None:
    """Write a resampled store and print its content.

    Raises StoreError: no option is given; see also `resample_store`.
    """
    from trajformer.scenes.resample import resample_store

    clock = {name: getattr(args, name) for name in CLOCK if getattr(args, name) is not None}
    if not clock:
        raise StoreError("give at least one of --period-s, --num-history and --num-future")
    _splits(args.store)
    _print_manifest(resample_store(args.store, args.out, _bar("resample"), **clock))
    print(f"{args.out}: resampled from {args.store}")


def export(args: Namespace) -> None:
    """Write one scene to a file.

    Raises StoreError: no split has the scene, or several splits have it and --split is not given.
    """
    from trajformer.scenes.export import export_scene

    check_outputs(args, out="npz" if args.out.suffix == ".npz" else "scene.json")
    split, scene = _find_scene(args.store, args.scene, _splits(args.store, args.split))
    export_scene(scene, args.out)
    content = f"{scene.num_agents} agents, {scene.num_polylines} polylines"
    print(f"{args.out}: scene {args.scene} of {split}, {content}")


def _find_scene(store: Path, scene_id: str, splits: list[str]) -> tuple[str, Scene]:
    """The scene of this id and its split, one of the given splits."""
    matches = {}  # by split
    for split in splits:
        scenes = SceneStore(store, split)
        for index in scenes.indices([scene_id]).values():
            matches[split] = scenes[index]
    if not matches:
        raise StoreError(f"{store}: no scene {scene_id} in {', '.join(splits)}")
    if len(matches) > 1:
        names = " and in ".join(matches)
        raise StoreError(f"{store}: scene {scene_id} is in {names}; choose with --split")
    return matches.popitem()
