"""`trajformer view`: scenes and forecasts as one HTML file that plays in a browser."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt
from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs, skipped_note
from trajformer.cli.parsing import Parser, add_overwrite, new_parser
from trajformer.cli.plot import open_scenes
from trajformer.cli.proposals import proposal
from trajformer.errors import TrajformerError
from trajformer.scenes.store import SceneStore

if TYPE_CHECKING:
    from trajformer.evaluation.forecast_file import TrackForecast
    from trajformer.plotting.page.encode import EncodedScene

MAX_FILES = 4  # as many colors


def parser() -> Parser:
    """STORE [--forecasts FORECASTS.parquet ...] --out PAGE.html."""
    made = new_parser(
        "Write scenes as one HTML file that plays in a browser, without network: map, tracks, "
        "recorded futures, predicted modes and their errors."
    )
    made.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    made.add_argument(
        "--split", help="default: the split of the given scenes or of the forecasts, else val"
    )
    made.add_argument(
        "--forecasts",
        type=Path,
        nargs="+",
        default=[],
        help=f"up to {MAX_FILES} files of `trajformer predict`, to compare",
    )
    made.add_argument("--scene", nargs="+", default=[], help="ids of scenes")
    made.add_argument("--worst", type=PositiveInt, help="number of scenes with the largest minFDE")
    made.add_argument("--random", type=PositiveInt, help="number of random scenes")
    made.add_argument("--seed", type=NonNegativeInt, default=0, help="seed of the random scenes")
    made.add_argument("--out", type=Path, help="the HTML file")
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Write the page and print its path, number of scenes and size."""
    from trajformer.plotting.page.build import MAX_SCENES, write_page

    if args.out is None:
        raise TrajformerError("--out is needed: give the name of the HTML file")
    if args.worst is not None and not args.forecasts:
        raise TrajformerError("--worst needs --forecasts")
    if len(args.forecasts) > MAX_FILES:
        raise TrajformerError(f"--forecasts: at most {MAX_FILES} files can be compared")
    check_outputs(args, out="html")
    scenes, files = open_scenes(args, args.forecasts)
    chosen = _choose(args, scenes, files, MAX_SCENES)
    encoded = _encode(args, scenes, chosen, files)
    title = f"{args.store.resolve().name} · {scenes.split}"
    size = write_page(args.out, encoded, _file_names(args.forecasts), title)
    note = skipped_note(scenes)
    if note:
        print(f"trajformer view: {note}", file=sys.stderr)
    if not files:
        hint = proposal(scenes, "predict --out FORECASTS.parquet")
        print(f"trajformer view: written without --forecasts; {hint}", file=sys.stderr)
    count = "1 scene" if len(chosen) == 1 else f"{len(chosen)} scenes"
    print(f"{args.out}: {count}, {size / 1e6:.1f} MB")


def _choose(
    args: Namespace,
    scenes: SceneStore,
    files: Sequence[dict[str, list[TrackForecast]]],
    most: int,
) -> list[int]:
    """Indices of the scenes of the page, in the order of the store except the worst ones."""
    from trajformer.plotting.choice import choose_scenes

    first = files[0] if files else {}
    random = args.random
    is_default = not args.scene and args.worst is None and random is None
    if is_default:
        random = most
    chosen = choose_scenes(
        scenes, first, scene_ids=args.scene, worst=args.worst, random=random, seed=args.seed
    )
    if not chosen:
        reason = f"split '{scenes.split}' has no scene to show (--worst needs recorded futures)"
        raise TrajformerError(f"{args.store}: {reason}")
    if len(chosen) > most:
        reason = f"{len(chosen)} scenes, a page holds at most {most}"
        raise TrajformerError(f"{reason}; give fewer with --scene, --worst or --random")
    if is_default:
        chosen.sort()
        if len(chosen) == most:
            note = f"{most} random scenes; choose with --scene, --worst or --random"
            print(f"trajformer view: {note}", file=sys.stderr)
    return chosen


def _encode(
    args: Namespace,
    scenes: SceneStore,
    chosen: Sequence[int],
    files: Sequence[dict[str, list[TrackForecast]]],
) -> Iterator[EncodedScene]:
    """The scenes one after the other (TrajformerError: a forecast does not fit its scene)."""
    from trajformer.plotting.page.encode import encode_scene

    for index in tqdm(chosen, desc="view", unit="scene", disable=not bars()):
        scene = scenes[index]
        yield encode_scene(scene, [file.get(scene.scene_id, []) for file in files])


def _file_names(paths: Sequence[Path]) -> list[str]:
    """Names of files without folder and suffix, or whole paths if these are equal."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        return [str(path) for path in paths]
    return names
