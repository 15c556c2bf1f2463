"""`trajformer view`: scenes and forecasts that play in a browser, as a file or at an address."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs, skipped_note
from trajformer.cli.forecasters import CHECKPOINT_HELP
from trajformer.cli.parsing import (
    NonNegativeInt,
    Number,
    Parser,
    PositiveInt,
    add_overwrite,
    new_parser,
)
from trajformer.cli.plot import open_scenes
from trajformer.cli.proposals import proposal
from trajformer.errors import TrajformerError
from trajformer.recipes.names import PRETRAINED
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import DataSpec, check_scenes
from trajformer.scenes.store import SceneStore

if TYPE_CHECKING:
    from trajformer.evaluation.forecast_file import TrackForecast
    from trajformer.models.forecaster import Predictor
    from trajformer.plotting.page.encode import EncodedScene

    Encode = Callable[[Scene], EncodedScene]

Port = Number("1 to 65535", int, 1, (1 << 16) - 1)
MAX_FORECASTS = 4  # of a scene: as many colors


def parser() -> Parser:
    """STORE [--forecasts FORECASTS.parquet ...] [--checkpoint CKPT] [--out PAGE.html]."""
    made = new_parser(
        "Show scenes in a browser, moving: map, tracks, recorded futures, predicted modes and "
        "their errors. With --out, as one HTML file that needs no network; without it, all scenes "
        "at an address of this computer, until Ctrl-C."
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
        help=f"up to {MAX_FORECASTS} files of `trajformer predict`, to compare",
    )
    made.add_argument(
        "--checkpoint", type=Path, help=f"{CHECKPOINT_HELP}: its forecasts and attention"
    )
    made.add_argument("--scene", nargs="+", default=[], help="ids of scenes")
    made.add_argument("--worst", type=PositiveInt, help="number of scenes with the largest minFDE")
    made.add_argument("--random", type=PositiveInt, help="number of random scenes")
    made.add_argument("--seed", type=NonNegativeInt, default=0, help="seed of the random scenes")
    made.add_argument("--out", type=Path, help="the HTML file")
    made.add_argument("--port", type=Port, help="of the address; default: a free one")
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Write the page and print its path, number of scenes and size; or serve it."""
    _check_options(args)
    scenes, files = open_scenes(args, args.forecasts)
    encode = scene_encoder(files, _load_predictor(args, scenes))
    note = skipped_note(scenes)
    if note:
        print(f"trajformer view: {note}", file=sys.stderr)
    names = _forecast_names(args)
    if not names:
        hint = proposal(scenes, "predict --out FORECASTS.parquet")
        print(f"trajformer view: shown without --forecasts; {hint}", file=sys.stderr)
    title = f"{args.store.resolve().name} · {scenes.split}"
    if args.out is None:
        _serve(args, scenes, files, encode, names, title)
    else:
        _write(args, scenes, files, encode, names, title)


def scene_encoder(
    files: Sequence[dict[str, list[TrackForecast]]], predictor: Predictor | None = None
) -> Encode:
    """A function that encodes a scene with its forecasts in `files`, and with those of a model.

    It also encodes the attention of the model, or prints once that the model has none to show.
    """
    from trajformer.evaluation.attention import explain
    from trajformer.plotting.page.encode import encode_scene

    told = predictor is None

    def encode(scene: Scene) -> EncodedScene:
        nonlocal told
        forecasts = [file.get(scene.scene_id, []) for file in files]
        attention = None
        if predictor is not None:
            predicted, attention = explain(predictor, scene)
            forecasts.append(predicted)
            if predicted and attention is None and not told:
                told = True
                print(f"trajformer view: {_no_attention(predictor)}", file=sys.stderr)
        return encode_scene(scene, forecasts, attention)

    return encode


def _no_attention(predictor: Predictor) -> str:
    reason = "it has no recorded attention from targets to agents and lanes"
    return f"forecasts of {type(predictor.model).__name__} without attention: {reason}"


def _check_options(args: Namespace) -> None:
    """Raise a TrajformerError if options do not fit each other or the output."""
    if args.worst is not None and not args.forecasts:
        raise TrajformerError("--worst needs --forecasts")
    if len(args.forecasts) + (args.checkpoint is not None) > MAX_FORECASTS:
        reason = f"at most {MAX_FORECASTS} forecasts of a scene can be compared"
        raise TrajformerError(f"--forecasts: {reason}, with --checkpoint one fewer")
    if args.out is not None and args.port is not None:
        raise TrajformerError("--port is for a page at an address; leave out --port or --out")
    if args.out is not None:
        check_outputs(args, out="html")


def _load_predictor(args: Namespace, scenes: SceneStore) -> Predictor | None:
    """The model of --checkpoint (TrajformerError: it does not fit the first scene)."""
    if args.checkpoint is None:
        return None
    import torch

    from trajformer.recipes.checkpoint import load_predictor

    torch.set_num_threads(1)  # single scenes are too small for more
    predictor = load_predictor(args.checkpoint)
    if len(scenes):
        check_scenes(DataSpec.of(scenes[0]), predictor.trained_on, scenes.root)
    return predictor


def _serve(
    args: Namespace,
    scenes: SceneStore,
    files: Sequence[dict[str, list[TrackForecast]]],
    encode: Encode,
    names: Sequence[str],
    title: str,
) -> None:
    """Print the address of the page, and answer its requests until Ctrl-C."""
    from trajformer.plotting.page.live import LivePage
    from trajformer.plotting.page.server import PageServer

    chosen = _choose(args, scenes, files)
    page = LivePage(scenes, chosen, encode, files, names, title)
    with PageServer(page, args.port or 0) as server:
        count = "1 scene" if len(chosen) == 1 else f"{len(chosen):,} scenes"
        print(f"{server.address}  ({count}; Ctrl-C ends)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\ntrajformer view: ended", flush=True)
        finally:
            page.close()


def _write(
    args: Namespace,
    scenes: SceneStore,
    files: Sequence[dict[str, list[TrackForecast]]],
    encode: Encode,
    names: Sequence[str],
    title: str,
) -> None:
    """Write the page, and print its path, number of scenes and size."""
    from trajformer.plotting.page.build import MAX_SCENES, write_page

    chosen = _choose(args, scenes, files)
    if len(chosen) > MAX_SCENES and _is_default(args):
        drawn = np.random.default_rng(args.seed).permutation(len(chosen))[:MAX_SCENES]
        chosen = [chosen[place] for place in sorted(drawn.tolist())]
        note = f"{MAX_SCENES} random scenes; choose with --scene, --worst or --random"
        print(f"trajformer view: {note}", file=sys.stderr)
    if len(chosen) > MAX_SCENES:
        reason = f"{len(chosen)} scenes, a file holds at most {MAX_SCENES}"
        remedy = "give fewer with --scene, --worst or --random, or leave out --out"
        raise TrajformerError(f"{reason}; {remedy}")
    bar = tqdm(chosen, desc="view", unit="scene", disable=not bars())
    encoded = (encode(scenes[index]) for index in bar)
    size = write_page(args.out, encoded, names, title)
    count = "1 scene" if len(chosen) == 1 else f"{len(chosen)} scenes"
    print(f"{args.out}: {count}, {size / 1e6:.1f} MB")


def _is_default(args: Namespace) -> bool:
    """True if no option chooses scenes."""
    return not args.scene and args.worst is None and args.random is None


def _choose(
    args: Namespace, scenes: SceneStore, files: Sequence[dict[str, list[TrackForecast]]]
) -> Sequence[int]:
    """Indices of the scenes, in the order of the store except chosen ones.

    All scenes are a `range`, which needs no list of a million scenes.
    """
    from trajformer.plotting.choice import choose_scenes

    first = files[0] if files else {}
    if _is_default(args) and not first:
        chosen: Sequence[int] = range(len(scenes))
    else:
        chosen = choose_scenes(
            scenes,
            first,
            scene_ids=args.scene,
            worst=args.worst,
            random=args.random,
            seed=args.seed,
        )
    if not chosen:
        reason = f"split '{scenes.split}' has no scene to show (--worst needs recorded futures)"
        raise TrajformerError(f"{args.store}: {reason}")
    return chosen


def _forecast_names(args: Namespace) -> list[str]:
    """Names of the forecasts: files without folder and suffix, or whole paths if these are equal.

    The model of --checkpoint is the last one.
    """
    paths = [*args.forecasts]
    names = [path.stem for path in paths]
    if args.checkpoint is not None:
        paths.append(args.checkpoint)
        file_of_run = str(Path(*args.checkpoint.parts[-2:]))
        names.append(file_of_run.removeprefix(PRETRAINED))
    if len(set(names)) < len(names):
        return [str(path) for path in paths]
    return names
