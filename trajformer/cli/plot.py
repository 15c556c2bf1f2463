"""`trajformer plot`: pictures of scenes, with forecasts."""

from __future__ import annotations

import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs, skipped_note
from trajformer.cli.parsing import (
    SMALLEST,
    NonNegativeInt,
    Number,
    Parser,
    PositiveInt,
    add_overwrite,
    new_parser,
)
from trajformer.cli.proposals import proposal
from trajformer.cli.splits import DEFAULT_SPLIT, default_split
from trajformer.errors import TrajformerError, TrajformerWarning
from trajformer.scenes.spec import DataSpec, check_scenes, same_split
from trajformer.scenes.store import SceneStore, store_splits

if TYPE_CHECKING:
    from trajformer.evaluation.forecast_file import TrackForecast
    from trajformer.plotting.scene import PictureOptions

DEFAULT_COUNT = 8  # pictures
COLOR_BY = ("agent", "type", "world")
FORMATS = ("png", "svg", "pdf")
ANIMATED = ("gif", "mp4", "webm")
MAX_ZOOM = 1000


def parser() -> Parser:
    """STORE [--forecasts FORECASTS.parquet] --out DIR."""
    made = new_parser(
        "Draw scenes: map, observed tracks, recorded futures and predicted modes. "
        f"By default {DEFAULT_COUNT} random scenes."
    )
    made.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    made.add_argument(
        "--split",
        help=f"default: the split of the given scenes or of the forecasts, else {DEFAULT_SPLIT}",
    )
    made.add_argument("--forecasts", type=Path, help="file of `trajformer predict`")
    made.add_argument(
        "--density",
        action="store_true",
        help="draw the density of predicted positions instead of the modes",
    )
    made.add_argument("--scene", nargs="+", default=[], help="ids of scenes")
    made.add_argument("--worst", type=PositiveInt, help="number of scenes with the largest minFDE")
    made.add_argument("--random", type=PositiveInt, help="number of random scenes")
    made.add_argument("--seed", type=NonNegativeInt, default=0, help="seed of the random scenes")
    made.add_argument(
        "--agents",
        nargs="+",
        default=[],
        help="ids of agents: draw their forecasts and recorded futures only, and fit them",
    )
    made.add_argument("--ids", action="store_true", help="write the ids of the agents")
    made.add_argument(
        "--color",
        choices=COLOR_BY,
        default="agent",
        help="one color per agent, per type of agent, or per world (joint forecasts)",
    )
    made.add_argument(
        "--zoom",
        type=Number(f"over 0, up to {MAX_ZOOM}", float, SMALLEST, MAX_ZOOM),
        default=1.0,
        help="2 shows the middle half of the width, 0.5 twice the width",
    )
    made.add_argument(
        "--animate",
        action="store_true",
        help="one animation per scene, 8 s long if the scene has enough history",
    )
    made.add_argument(
        "--format",
        choices=(*FORMATS, *ANIMATED),
        help="default: png, with --animate gif; mp4 and webm need the package av",
    )
    made.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the pictures, or one file .png, .svg or .pdf with all scenes, "
        "or one animation of one scene",
    )
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Draw scenes, with forecasts if a file is given, and print the paths of the pictures."""
    from trajformer.plotting.choice import choose_scenes
    from trajformer.plotting.files import save_scene_plots
    from trajformer.plotting.scene import PictureOptions

    _check_options(args)
    files = [] if args.forecasts is None else [args.forecasts]
    scenes, forecasts = open_scenes(args, files)
    modes = forecasts[0] if forecasts else {}
    random = args.random
    if random is None and not args.scene and args.worst is None:
        random = DEFAULT_COUNT
    chosen = choose_scenes(
        scenes, modes, scene_ids=args.scene, worst=args.worst, random=random, seed=args.seed
    )
    if not chosen:
        reason = f"split '{scenes.split}' has no scene to draw (--worst needs recorded futures)"
        raise TrajformerError(f"{args.store}: {reason}")
    _check_agents(args, scenes, chosen)
    options = PictureOptions(args.density, tuple(args.agents), args.ids, args.zoom, args.color)
    if args.animate:
        _animate(args, scenes, chosen, modes, options)
    else:
        paths = save_scene_plots(
            scenes,
            chosen,
            modes,
            args.out,
            progress=bars(),
            options=options,
            suffix=args.format or FORMATS[0],
        )
        for path in paths:
            print(path)
    note = skipped_note(scenes)
    if note:  # the other output is a list of files
        print(f"trajformer plot: {note}", file=sys.stderr)
    if args.forecasts is None:
        hint = proposal(scenes, "predict --out FORECASTS.parquet")
        print(f"trajformer plot: drawn without --forecasts; {hint}", file=sys.stderr)


def _check_options(args: Namespace) -> None:
    """Raise a TrajformerError if options do not fit each other or the output."""
    for name in ("density", "worst"):
        if args.forecasts is None and getattr(args, name):
            raise TrajformerError(f"--{name} needs --forecasts")
    if args.color == "world" and args.forecasts is None:
        raise TrajformerError("--color world needs --forecasts")
    known = ANIMATED if args.animate else FORMATS
    suffix = args.out.suffix.lstrip(".").lower()
    if args.format not in (None, *known):
        needed = "without --animate" if args.animate else "with --animate"
        raise TrajformerError(f"--format {args.format} is possible {needed} only")
    if suffix in known and args.format not in (None, suffix):
        raise TrajformerError(f"{args.out}: --format {args.format} needs a name ending in it")
    if args.animate:
        if args.density:
            raise TrajformerError("--animate shows modes; leave out --density")
        suffix = _use_encoder(args, suffix)
    check_outputs(args, out=suffix if suffix in known else "folder")


def _use_encoder(args: Namespace, suffix: str) -> str:
    """Write GIF instead of a format without an encoder; returns the suffix of `args.out`."""
    from trajformer.plotting.video import has_encoder

    if suffix in ANIMATED:
        args.format = suffix
    args.format = args.format or ANIMATED[0]
    if not has_encoder(args.format):
        hint = "`pip install av` installs one"
        print(
            f"trajformer plot: no encoder for {args.format}, so GIF is written; {hint}",
            file=sys.stderr,
        )
        args.format = ANIMATED[0]
        if suffix in ANIMATED:
            args.out = args.out.with_suffix(f".{ANIMATED[0]}")
            suffix = ANIMATED[0]
    return suffix


def _animate(
    args: Namespace,
    scenes: SceneStore,
    chosen: list[int],
    modes: dict[str, Any],
    options: PictureOptions,
) -> None:
    """Write one animation per scene, and print its path."""
    from trajformer.plotting.files import file_name
    from trajformer.plotting.scene import Content
    from trajformer.plotting.video import save_animation

    is_file = args.out.suffix.lstrip(".").lower() in ANIMATED
    if is_file and len(chosen) > 1:
        reason = f"one animation shows one scene, but {len(chosen)} were chosen"
        raise TrajformerError(f"{args.out}: {reason}; give a folder or one --scene")
    for index in tqdm(chosen, desc="plot", unit="scene", disable=not bars()):
        scene = scenes[index]
        content = Content(scene, modes.get(scene.scene_id, ()), options)
        path = args.out
        if not is_file:
            path = args.out / f"{file_name(scene.scene_id)}.{args.format}"
        save_animation(content, path, options)
        print(path)


def _check_agents(args: Namespace, scenes: SceneStore, chosen: list[int]) -> None:
    """Raise a TrajformerError if an agent is in no chosen scene, or a chosen scene has none."""
    if not args.agents:
        return
    if not args.scene and len(scenes) > 1:
        raise TrajformerError("--agents needs --scene, because ids of agents recur between scenes")
    missing = set(args.agents)
    for index in chosen:
        scene = scenes[index]
        present = missing.union(args.agents) & set(scene.agent_id)
        missing -= present
        if not present:
            known = ", ".join(scene.agent_id[:5])
            reason = f"no agent '{args.agents[0]}' in scene '{scene.scene_id}' (it has {known} ...)"
            raise TrajformerError(f"--agents: {reason}; `--ids` writes the ids into a picture")
    if missing:
        name = sorted(missing)[0]
        raise TrajformerError(f"--agents: no agent '{name}' in the given scenes")


def open_scenes(
    args: Namespace, files: Sequence[Path]
) -> tuple[SceneStore, list[dict[str, list[TrackForecast]]]]:
    """The scenes that `args` or the forecasts select, and the forecasts of each file by scene.

    Raises TrajformerError: a file cannot be read, or its forecasts do not fit the scenes.
    """
    from trajformer.evaluation.forecast_file import read_forecasts, read_spec

    forecasts = [read_forecasts(path) for path in files]
    # A forecast fits scenes with any number of observed steps, because their ends are equal.
    specs = [replace(read_spec(path), num_history=None) for path in files]
    scene_ids = args.scene or list(forecasts[0] if forecasts else [])
    preferred = specs[0].split if specs else None
    split = args.split or split_of(args.store, scene_ids, preferred)
    scenes = SceneStore(args.store, split)
    for path, modes, spec in zip(files, forecasts, specs, strict=True):
        _check_forecasts(args.store, path, scenes, modes, spec, is_chosen=bool(args.scene))
    return scenes, forecasts


def _check_forecasts(
    store: Path,
    path: Path,
    scenes: SceneStore,
    modes: dict[str, Any],
    expected: DataSpec,
    *,
    is_chosen: bool,
) -> None:
    """Raise a TrajformerError if the forecasts `modes` of a file are not of these scenes.

    Warns if only some are.
    `expected` are the properties of the scenes that were forecast. With `is_chosen`, the user named
    the scenes, and they need no forecast.
    """
    known_ids = scenes.indices(modes)
    if len(scenes):
        spec = DataSpec.of(scenes[0])
        check_scenes(spec, expected, store, "the scenes of the forecasts have")
        same = expected.split is None or same_split(expected.split, spec.split or "")
        if known_ids and not same:  # ids recur between splits
            reason = (
                f"forecasts of split '{expected.split}', "
                f"but the scenes of {store} are of split '{spec.split}'"
            )
            hint = "give --split or forecast these scenes"
            raise TrajformerError(f"{path}: {reason}; {hint}")
    if modes and not is_chosen and not known_ids:
        reason = f"no forecast of a scene in split '{scenes.split}' of {store}"
        raise TrajformerError(f"{path}: {reason}; leave out --split")
    unknown_ids = [scene_id for scene_id in modes if scene_id not in known_ids]
    if unknown_ids and not is_chosen:
        counts = f"{len(unknown_ids):,} of {len(modes):,} forecast scenes"
        where = f"are not in split '{scenes.split}' of {store}"
        message = f"{path}: {counts} {where} (first: {unknown_ids[0]})"
        warnings.warn(message, TrajformerWarning, stacklevel=2)


def split_of(store: Path, scene_ids: list[str], preferred: str | None = None) -> str:
    """The split with most of these scenes; of several the preferred one (ids recur between splits).

    Without scenes, the only split of the store, or `DEFAULT_SPLIT`. Raises TrajformerError: no
    split has a scene.
    """
    preferred = preferred or DEFAULT_SPLIT
    splits = store_splits(store)
    if not scene_ids or not splits:
        return default_split(store)
    counts = {split: len(SceneStore(store, split).indices(scene_ids)) for split in splits}
    if not any(counts.values()):
        names = ", ".join(splits)
        raise TrajformerError(f"{store}: no scene {scene_ids[0]} in any split ({names})")
    return max(splits, key=lambda split: (counts[split], split == preferred))
