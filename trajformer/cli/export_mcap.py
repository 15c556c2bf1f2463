"""`trajformer export-mcap`: scenes and forecasts as an MCAP file for Foxglove."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs
from trajformer.cli.parsing import NonNegativeInt, Parser, PositiveInt, add_overwrite, new_parser
from trajformer.cli.plot import open_scenes
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.scenes.scene import METRES, Scene
from trajformer.scenes.store import SceneStore

DEFAULT_COUNT = 8  # scenes


def parser() -> Parser:
    """STORE [--forecasts FORECASTS.parquet] --out FILE.mcap."""
    made = new_parser(
        "Write scenes and forecasts as an MCAP file for Foxglove: map, agents as boxes, forecasts "
        f"as lines. The scenes follow one another. By default {DEFAULT_COUNT} random scenes."
    )
    made.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    made.add_argument("--split", help="default: as for `trajformer plot`")
    made.add_argument("--forecasts", type=Path, help="file of `trajformer predict`")
    made.add_argument("--scene", nargs="+", default=[], help="ids of scenes")
    made.add_argument("--random", type=PositiveInt, help="number of random scenes")
    made.add_argument("--seed", type=NonNegativeInt, default=0, help="seed of the random scenes")
    made.add_argument("--out", type=Path, required=True, help="MCAP file")
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Write the file and print its scenes and size."""
    from trajformer.plotting.choice import choose_scenes
    from trajformer.plotting.foxglove import write_mcap

    if find_spec("mcap") is None:
        raise TrajformerError("the package mcap is missing; `pip install trajformer[mcap]`")
    check_outputs(args, out="mcap")
    files = [] if args.forecasts is None else [args.forecasts]
    scenes, forecasts = open_scenes(args, files)
    modes = forecasts[0] if forecasts else {}
    random = args.random
    if random is None and not args.scene:
        random = DEFAULT_COUNT
    chosen = choose_scenes(scenes, modes, scene_ids=args.scene, random=random, seed=args.seed)
    if not chosen:
        raise TrajformerError(f"{args.store}: split '{scenes.split}' has no scene to export")
    if scenes[chosen[0]].unit != METRES:
        raise TrajformerError(f"{args.store}: positions in pixels, but Foxglove shows metres")
    count = write_mcap(args.out, _pairs(scenes, chosen, modes))
    size = args.out.stat().st_size
    print(f"{args.out}: {count} scenes, {size / 1e6:.1f} MB")
    if args.random is None and not args.scene and len(scenes) > count:
        line = f"{count} random scenes of {len(scenes)}; choose with --scene or --random"
        print(f"trajformer export-mcap: {line}", file=sys.stderr)


def _pairs(
    scenes: SceneStore, chosen: Sequence[int], modes: dict[str, list[TrackForecast]]
) -> Iterator[tuple[Scene, Sequence[TrackForecast]]]:
    for index in tqdm(chosen, desc="export", unit="scene", disable=not bars()):
        scene = scenes[index]
        yield scene, modes.get(scene.scene_id, ())
