"""Scoring and forecasting with a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from trajformer.cli.files import bars, make_room
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

Accelerator = Literal["auto", "cpu", "gpu"]


def evaluate(
    source: Path | str | None,
    store: Path,
    split: str,
    *,
    json_file: Path | None,
    csv_file: Path | None,
    accelerator: Accelerator,
    batch_size: int,
) -> dict[str, float]:
    """Score a model, a checkpoint or an untrained one (see `load_predictor`), on a split and print the table."""
    from trajformer.evaluation.evaluate import evaluate as score
    from trajformer.recipes.checkpoint import load_predictor, pick_device
    from trajformer.scenes.store import SceneStore

    scenes = SceneStore(store, split)
    predictor = load_predictor(source or "constant_velocity", pick_device(accelerator))
    make_room(json_file, csv_file)
    evaluation = score(predictor, scenes, batch_size=batch_size, progress=bars())
    result = evaluation.figures
    print_table([(str(source or "constant_velocity"), result)])
    if json_file is not None:
        write_atomically(json_file, json.dumps(result, indent=1) + "\n")
    if csv_file is not None:
        write_atomically(csv_file, evaluation.per_agent.round(6).to_csv(index=False))
    return result


def print_table(rows: list[tuple[str, dict[str, float]]]) -> None:
    """Models below each other, metrics beside each other; metres, shares and, first, how many agents."""
    width = max(len(label) for label, _ in rows)
    for names in _blocks(rows[0][1]):
        print(" " * width + "  agents " + " ".join(f"{name:>14}" for name in names))
        for label, row in rows:
            print(f"{label:<{width}}  {row['num_agents']:6d} " + " ".join(f"{row[name]:14.3f}" for name in names))


def _blocks(row: dict[str, float]) -> list[list[str]]:
    """Names of the figures, by what they are of: k = 1 and 6, 20 where there are as many modes, worlds where there are any."""
    names = [name for name in row if name[-1].isdigit()]
    worlds = [name for name in names if name.startswith(("avg", "actor"))]
    of_20 = [name for name in names if name.endswith("20")]
    blocks = [[name for name in names if name not in worlds + of_20], of_20, worlds]
    return [block for block in blocks if block]


def predict(
    source: Path | str | None,
    store: Path,
    split: str,
    out: Path,
    *,
    targets: Literal["scored", "focal", "all"],
    accelerator: Accelerator,
    batch_size: int,
) -> None:
    """Write every target's modes to a parquet file with the Argoverse 2 challenge columns."""
    from trajformer.evaluation.evaluate import track_forecasts
    from trajformer.evaluation.forecast_file import write_forecasts
    from trajformer.recipes.checkpoint import load_predictor, pick_device
    from trajformer.scenes.store import SceneStore

    scenes = SceneStore(store, split)
    predictor = load_predictor(source or "constant_velocity", pick_device(accelerator), targets)
    make_room(out)
    count = write_forecasts(out, track_forecasts(predictor, scenes, batch_size=batch_size, progress=bars()))
    if not count:
        raise TrajformerError(f"{store}: split '{split}' has no agent to forecast ({targets})")
    print(f"{out}: forecasts of {count} agents in {len(scenes)} scenes")
