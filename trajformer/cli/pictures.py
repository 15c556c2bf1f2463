"""`trajformer plot`: pictures of scenes."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from trajformer.cli.files import bars, make_folder, make_room
from trajformer.cli.parsing import Parser, new_parser
from trajformer.errors import TrajformerError

DEFAULT_COUNT = 8


def plot_parser() -> Parser:
    """STORE [--forecasts FORECASTS.parquet] --out DIR."""
    parser = new_parser(
        f"Draw scenes: map, observed tracks, recorded futures and predicted modes. By default {DEFAULT_COUNT} random scenes."
    )
    parser.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    parser.add_argument("--split", help="default: the split of the given scenes or of the forecasts, else val")
    parser.add_argument("--forecasts", type=Path, help="file of `trajformer predict`")
    parser.add_argument("--density", action="store_true", help="draw the density of predicted positions instead of the modes")
    parser.add_argument("--scene", nargs="+", default=[], help="ids of scenes")
    parser.add_argument("--worst", type=PositiveInt, help="number of scenes with the largest minFDE")
    parser.add_argument("--random", type=PositiveInt, help="number of random scenes")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="seed of the random scenes")
    parser.add_argument("--out", type=Path, required=True, help="folder for the PNG files, or one file .png with all scenes")
    return parser


def run_plot(args: Namespace) -> None:
    """`trajformer plot`: draw scenes, with forecasts if a file is given, and print the paths of the pictures."""
    from trajformer.evaluation.forecast_file import read_forecasts
    from trajformer.plotting.scene import choose_scenes, save_scene_plots
    from trajformer.scenes.store import SceneStore

    if args.forecasts is None and (args.worst is not None or args.density):
        raise TrajformerError(f"--{'density' if args.density else 'worst'} needs --forecasts")
    modes = read_forecasts(args.forecasts) if args.forecasts is not None else {}
    scenes = SceneStore(args.store, args.split or split_of(args.store, args.scene or list(modes)))
    random = args.random if args.scene or args.worst is not None else args.random or DEFAULT_COUNT
    chosen = choose_scenes(scenes, modes, scene_ids=args.scene, worst=args.worst, random=random, seed=args.seed)
    if not chosen:
        raise TrajformerError(f"{args.store}: split '{scenes.split}' has no scene to draw (--worst needs recorded futures)")
    if args.out.suffix == ".png":
        make_room(args.out)
    else:
        make_folder(args.out)
    for path in save_scene_plots(scenes, chosen, modes, args.out, progress=bars(), density=args.density):
        print(path)


def split_of(store: Path, scene_ids: list[str]) -> str:
    """The split with most of the scenes (ids recur between splits). Without scenes, val or the only split."""
    from trajformer.scenes.store import SceneStore, store_splits

    splits = store_splits(store)
    requested = set(scene_ids)
    counts = {split: len(requested & set(SceneStore(store, split).scene_ids())) for split in splits} if requested else {}
    if any(counts.values()):
        return max(splits, key=lambda split: (counts[split], split == "val"))
    if scene_ids and splits:
        raise TrajformerError(f"{store}: no scene {scene_ids[0]} in any split ({', '.join(splits)})")
    return splits[0] if len(splits) == 1 else "val"
