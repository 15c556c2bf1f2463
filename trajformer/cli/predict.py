"""`trajformer predict`: a file with the forecasts of a split."""

import shlex
from pathlib import Path

from jsonargparse import Namespace

from trajformer.cli.files import bars, check_outputs, skipped_note
from trajformer.cli.forecasters import add_forecaster, load_forecaster
from trajformer.cli.parsing import Parser, new_parser
from trajformer.errors import TrajformerError
from trajformer.scenes.spec import DataSpec


def parser() -> Parser:
    """(--checkpoint CKPT | --model NAME) --store STORE --out FORECASTS.parquet."""
    made = new_parser(
        "Forecast a split and write a parquet file with the columns of the Argoverse 2 challenge: "
        "one row per mode, metres, frame of the city."
    )
    add_forecaster(made)
    made.add_argument("--out", type=Path, required=True, help="parquet file")
    return made


def run(args: Namespace) -> None:
    """Write the modes of all targets."""
    from trajformer.evaluation.evaluate import track_forecasts
    from trajformer.evaluation.forecast_file import write_forecasts

    check_outputs(args, out="parquet")
    scenes, predictor, _ = load_forecaster(args, f"predict --out {shlex.quote(str(args.out))}")
    forecasts = track_forecasts(predictor, scenes, batch_size=args.batch_size, progress=bars())
    spec = DataSpec.of(scenes[0]) if len(scenes) else DataSpec()
    count = write_forecasts(args.out, forecasts, spec)
    if not count:
        reason = f"split '{args.split}' has no agent to forecast ({args.agents})"
        raise TrajformerError(f"{args.store}: {reason}")
    print(f"{args.out}: forecasts of {count} agents in {len(scenes)} scenes")
    note = skipped_note(scenes)
    if note:
        print(note)
