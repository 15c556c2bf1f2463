"""`trajformer predict`: a file with the forecasts of a split."""

from __future__ import annotations

import shlex
import warnings
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trajformer.cli.files import bars, check_outputs, skipped_note
from trajformer.cli.forecasters import add_forecaster, load_forecaster, sources
from trajformer.cli.kept_parts import open_folder, part_path, parts_folder, remove_parts
from trajformer.cli.parsing import Parser, new_parser
from trajformer.cli.parts import add_parts, has_parts, run_parts
from trajformer.errors import TrajformerError, TrajformerWarning
from trajformer.evaluation.parts import Slice, plan
from trajformer.scenes.spec import DataSpec, warn

if TYPE_CHECKING:
    from trajformer.evaluation.forecast_file import TrackForecast
    from trajformer.models.forecaster import Predictor
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
    add_parts(made)
    return made


def run(args: Namespace) -> None:
    """Write the modes of all targets."""
    from trajformer.evaluation.evaluate import track_forecasts
    from trajformer.evaluation.forecast_file import write_forecasts

    check_outputs(args, out="parquet")
    by_parts = has_parts(args)
    if args.submission is not None:
        _select_agents(args)
    [source] = sources(args)
    command = f"predict --out {shlex.quote(str(args.out))}"
    scenes, predictor = load_forecaster(args, source, command)
    if by_parts:
        forecasts = forecasts_of_parts(args, scenes)
    else:
        forecasts = track_forecasts(predictor, scenes, batch_size=args.batch_size, progress=bars())
    spec = DataSpec.of(scenes[0]) if len(scenes) else DataSpec()
    if args.submission is not None:
        forecasts = _for_submission(args, forecasts, scenes, spec)
    count = write_forecasts(args.out, forecasts, spec)
    if not count:
        reason = f"split '{args.split}' has no agent to forecast ({args.agents})"
        raise TrajformerError(f"{args.store}: {reason}")
    if by_parts:
        remove_parts(args.out)
    print(f"{args.out}: forecasts of {count} agents in {len(scenes)} scenes")
    note = skipped_note(scenes)
    if note:
        print(note)


def forecasts_of_parts(args: Namespace, scenes: SceneStore) -> Iterator[TrackForecast]:
    """Forecast the parts that are missing next to `args.out`; then yield all forecasts.

    Raises TrajformerError: the parts are of other inputs, or an error of `run_parts`.
    """
    from trajformer.evaluation.forecast_file import read_forecasts

    [source] = sources(args)
    assert source is not None
    folder = parts_folder(args.out.absolute())
    open_folder(folder, args, source, batch_size=args.batch_size)
    parts = plan(len(scenes), args.batch_size)
    missing = [part for part in parts if not part_path(folder, part, "parquet").is_file()]
    num_missing = sum(part.stop - part.start for part in missing)
    job = partial(write_part, folder=folder, batch_size=args.batch_size)
    jobs = dict.fromkeys(missing, job)
    for _ in run_parts(args, source, jobs, len(scenes) - num_missing):
        pass  # its file is written
    for part in parts:
        for tracks in read_forecasts(part_path(folder, part, "parquet")).values():
            yield from tracks


def write_part(predictor: Predictor, scenes: Slice, folder: Path, batch_size: int) -> None:
    """Write the file of a part, atomically."""
    from trajformer.evaluation.evaluate import track_forecasts
    from trajformer.evaluation.forecast_file import check_forecast, write_forecasts

    forecasts = track_forecasts(predictor, scenes, batch_size=batch_size)
    checked = [check_forecast(forecast) for forecast in forecasts]
    with warnings.catch_warnings():
        # The joined file has the warnings about its tracks.
        warnings.simplefilter("ignore", TrajformerWarning)
        write_forecasts(part_path(folder, scenes.part, "parquet"), checked, DataSpec.of(scenes[0]))


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
