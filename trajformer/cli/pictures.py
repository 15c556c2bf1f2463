"""`trajformer plot`: pictures of scenes."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from trajformer.cli.files import bars, make_folder, make_room
from trajformer.cli.parsing import Parser, new_parser
from trajformer.errors import TrajformerError

DEFAULT_COUNT = 8


class Choice(TypedDict):
    """The scenes to draw: by id, the ones with the largest error, and random ones; by default 8 random ones."""

    scene: list[str]
    worst: int | None
    random: int | None
    seed: int


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
    """`trajformer plot`."""
    choice: Choice = {"scene": args.scene, "worst": args.worst, "random": args.random, "seed": args.seed}
    plot(args.store, args.split, args.forecasts, args.out, density=args.density, **choice)


def plot(
    store: Path, split: str | None, forecasts: Path | None, out: Path, *, density: bool = False, **choice: Unpack[Choice]
) -> list[Path]:
    """Draw scenes, with forecasts if a file is given, and print the paths of the pictures."""
    from trajformer.evaluation.forecast_file import read_forecasts
    from trajformer.plotting.scene import choose_scenes, save_scene_plots
    from trajformer.scenes.store import SceneStore

    scene, worst, random = choice["scene"], choice["worst"], choice["random"]
    if forecasts is None and (worst is not None or density):
        raise TrajformerError(f"--{'density' if density else 'worst'} needs --forecasts")
    modes = read_forecasts(forecasts) if forecasts is not None else {}
    scenes = SceneStore(store, split or split_of(store, scene or list(modes)))
    if not (scene or worst is not None or random is not None):
        random = DEFAULT_COUNT
    chosen = choose_scenes(scenes, modes, scene_ids=scene, worst=worst, random=random, seed=choice["seed"])
    if not chosen:
        raise TrajformerError(f"{store}: split '{scenes.split}' has no scene to draw (--worst needs recorded futures)")
    if out.suffix == ".png":
        make_room(out)
    else:
        make_folder(out)
    paths = save_scene_plots(scenes, chosen, modes, out, progress=bars(), density=density)
    for path in paths:
        print(path)
    return paths


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
