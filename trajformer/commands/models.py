"""Scoring and forecasting with a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from trajformer.commands.files import bars, make_room
from trajformer.errors import TrajformerError
from trajformer.manifest import write_atomically

Accelerator = Literal["auto", "cpu", "gpu"]


def evaluate(
    checkpoint: Path | None,
    store: Path,
    split: str,
    *,
    json_file: Path | None,
    csv_file: Path | None,
    accelerator: Accelerator,
    batch_size: int,
) -> dict[str, float]:
    """Score a model on a split and print the table."""
    from trajformer.evaluation import evaluate as score
    from trajformer.evaluation import load_predictor, pick_device
    from trajformer.store import SceneStore

    scenes = SceneStore(store, split)
    predictor = load_predictor(checkpoint, pick_device(accelerator))
    make_room(json_file, csv_file)
    result = score(predictor, scenes, batch_size=batch_size, progress=bars(), rows=csv_file)
    print_table([(str(checkpoint or "constant_velocity"), result)])
    if json_file is not None:
        write_atomically(json_file, json.dumps(result, indent=1) + "\n")
    return result


def print_table(rows: list[tuple[str, dict[str, float]]]) -> None:
    """Models below each other, metrics beside each other; metres."""
    names = [f"{name}_{k}" for k in (1, 6) for name in ("minADE", "minFDE", "MR", "brier_minFDE")]
    width = max(len(label) for label, _ in rows)
    print(" " * width + "  agents " + " ".join(f"{name:>14}" for name in names))
    for label, row in rows:
        print(f"{label:<{width}}  {row['num_agents']:6d} " + " ".join(f"{row[name]:14.3f}" for name in names))


def predict(
    checkpoint: Path | None,
    store: Path,
    split: str,
    out: Path,
    *,
    targets: Literal["scored", "focal", "all"],
    accelerator: Accelerator,
    batch_size: int,
) -> None:
    """Write every target's modes to a parquet file with the Argoverse 2 challenge columns."""
    from trajformer.evaluation import load_predictor, pick_device, track_forecasts
    from trajformer.store import SceneStore
    from trajformer.submission import write_forecasts

    scenes = SceneStore(store, split)
    predictor = load_predictor(checkpoint, pick_device(accelerator), targets)
    make_room(out)
    count = write_forecasts(out, track_forecasts(predictor, scenes, batch_size=batch_size, progress=bars()))
    if not count:
        raise TrajformerError(f"{store}: split '{split}' has no agent to forecast ({targets})")
    print(f"{out}: forecasts of {count} agents in {len(scenes)} scenes")
