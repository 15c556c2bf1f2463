"""`trajformer evaluate --protocol interaction`: from the validation cases to the table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from trajformer.evaluation.protocols.interaction import CaseFigures, CaseSet

SPLIT = "val"


def evaluate(data: Path, checkpoints: Sequence[Path], args: Namespace) -> None:
    """Score constant velocity or trained models on the validation cases, and print them next to the published rows.

    `args` has the options `model`, `joint`, `accelerator`, `batch_size`, `json` and `export` of `trajformer evaluate`. The folder
    `export` receives the files of the challenge, `<model>/<location>_sub.csv`.
    """
    from trajformer.data.sample import BatchConfig
    from trajformer.evaluation.protocols.interaction import (
        case_figures,
        outcomes,
        summarize,
        table,
        write_challenge_file,
    )
    from trajformer.models.constant_velocity import ConstantVelocityConfig
    from trajformer.models.forecaster import Predictor
    from trajformer.recipes.checkpoint import load_predictor, pick_device

    if checkpoints and args.model:
        raise TrajformerError("give either --checkpoint CKPT or --model constant_velocity")
    device = pick_device(args.accelerator)
    check_outputs(args, json="json", export="folder")
    predictors = {str(path): load_predictor(path, device, joint=args.joint) for path in checkpoints}
    if not checkpoints:
        name = args.model or "constant_velocity"
        one_mode = Predictor(ConstantVelocityConfig(recorded=True).build().to(device).eval(), BatchConfig(), device)
        predictors[name] = one_mode if name == "constant_velocity" else load_predictor(name, device)
    cases: dict[str, dict[str, list[CaseFigures]]] = {label: {} for label in predictors}  # by model and location
    for case_set in read_cases(data):
        for label, predictor in predictors.items():
            results = list(outcomes(predictor, case_set, batch_size=args.batch_size, progress=bars()))
            cases[label][case_set.name] = list(map(case_figures, results))
            if args.export is not None:
                folder = args.export / label.strip("./").replace("/", "-")
                write_challenge_file(folder / f"{case_set.name}_sub.csv", results)
    figures = {label: summarize(by_location) for label, by_location in cases.items()}
    print(table(figures))
    if args.json is not None:
        write_atomically(args.json, json.dumps(figures, indent=1) + "\n")


def read_cases(data: Path) -> Iterator[CaseSet]:
    """The validation cases of each location.

    Raises:
        TrajformerError: no such folder, no case, or a case that cannot be used.
    """
    from data_prep.readers.interaction.reader import Interaction
    from trajformer.evaluation.protocols.interaction import CaseSet

    if not data.is_dir():
        raise TrajformerError(f"{data}: no such folder")
    reader = Interaction()
    if SPLIT not in reader.splits(data):
        raise TrajformerError(f"{data}: no validation cases (expected {reader.layout})")
    for path, items in groupby(reader.inputs(data, SPLIT), lambda item: item.path):
        cases = []
        for item in tqdm(list(items), desc=f"read {path.stem}", unit="case", disable=not bars(), dynamic_ncols=True):
            cases.append(reader.read(item, SPLIT, data).validate())
        yield CaseSet(cases[0].city, data, cases)
