"""`trajformer predict`: a file with the forecasts of a split."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from trajformer.cli.files import bars, check_outputs, skipped_note
from trajformer.cli.forecasters import add_forecaster, load_forecaster, sources
from trajformer.cli.parsing import Parser, Workers, new_parser
from trajformer.cli.parts import forecasts_of_parts, parts_folder
from trajformer.errors import TrajformerError
from trajformer.scenes.spec import DataSpec, warn

if TYPE_CHECKING:
    from trajformer.evaluation.forecast_file import TrackForecast
    from trajformer.scenes.store import SceneStore


def parser() -> Parser:
    """(--checkpoint CKPT | --model NAME) --store STORE --out FORECASTS.parquet."""
    made = new_parser(
        "Forecast a split and write a parquet file with the columns of the Argoverse 2 challenge: "
        "one row per mode, metres, frame of the city."
    )
    add_forecaster(made)
    made.add_argument(
        "--submission",
        choices=("single", "multi"),
        help="write a file for the Argoverse 2 challenge: the focal agents, or joint futures of "
        "all scored agents with one probability vector per scene (models with worlds)",
    )
    made.add_argument("--out", type=Path, required=True, help="parquet file")
    made.add_argument(
        "--workers",
        type=Workers,
        help="number of processes, with one thread each unless --threads is given; an interrupted "
        "command continues if it is repeated",
    )
    return made


def run(args: Namespace) -> None:
    """Write the modes of all targets."""
    from trajformer.evaluation.evaluate import track_forecasts
    from trajformer.evaluation.forecast_file import write_forecasts

    check_outputs(args, out="parquet")
    if args.submission is not None:
        _select_agents(args)
    [source] = sources(args)
    command = f"predict --out {shlex.quote(str(args.out))}"
    scenes, predictor = load_forecaster(args, source, command)
    if args.workers is None:
        forecasts = track_forecasts(predictor, scenes, batch_size=args.batch_size, progress=bars())
    else:
        forecasts = forecasts_of_parts(args, scenes)
    spec = DataSpec.of(scenes[0]) if len(scenes) else DataSpec()
    if args.submission is not None:
        forecasts = _for_submission(args, forecasts, scenes, spec)
    count = write_forecasts(args.out, forecasts, spec)
    if not count:
        reason = f"split '{args.split}' has no agent to forecast ({args.agents})"
        raise TrajformerError(f"{args.store}: {reason}")
    if args.workers is not None:
        shutil.rmtree(parts_folder(args.out))
    print(f"{args.out}: forecasts of {count} agents in {len(scenes)} scenes")
    note = skipped_note(scenes)
    if note:
        print(note)


def _select_agents(args: Namespace) -> None:
    """Set --agents and --joint by --submission (TrajformerError: they contradict it)."""
    if args.submission == "single":
        if args.joint or args.agents == "all":
            raise TrajformerError(
                "--submission single has focal agents; leave out --agents, --joint"
            )
        args.agents = "focal"
    else:
        if args.agents != "scored":
            raise TrajformerError("--submission multi has all scored agents; leave out --agents")
        args.joint = True


def _for_submission(
    args: Namespace, forecasts: Iterator[TrackForecast], scenes: SceneStore, spec: DataSpec
) -> Iterator[TrackForecast]:
    """The forecasts as av2 needs them; at the end, a warning if agents have no forecast."""
    from trajformer.evaluation import submission

    submission.check_scenes_of_challenge(spec)
    present: dict[str, set[str]] = {}
    for forecast in submission.without_ties(forecasts):
        present.setdefault(forecast.scene_id, set()).add(forecast.track_id)
        yield forecast
    each = (scenes[index] for index in range(len(scenes)))
    missing = submission.agents_without_forecast(each, present, args.submission)
    if missing:
        scene_id, track_id = missing[0]
        example = f"track {track_id} of scene {scene_id}"
        count = f"{len(missing)} agents that the challenge scores have no forecast"
        warn(f"{args.out}: {count}, for example {example}: they were never observed")
