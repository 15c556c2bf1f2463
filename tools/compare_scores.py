"""Scores and costs of models in a comparison (`compare_models.py`), each kept in a file beside its run."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import compare_cost
import torch

from trajformer.cli.files import bars
from trajformer.data.sample import BatchConfig
from trajformer.evaluation.evaluate import Predictor, evaluate, load_predictor, run
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.models import ConstantVelocity
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.files import write_atomically
from trajformer.scenes.store import SceneStore

CPU = torch.device("cpu")


def write_json(path: Path, value: Any) -> None:
    """Atomically."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")


class Scorer:
    """Scores of models on one split, each kept in its folder; what agents did is found once."""

    def __init__(self, store: Path) -> None:
        self.store, self.did = store, dict[str, dict[tuple[str, str], Manoeuvre]]()

    def kinds(self, split: str) -> dict[tuple[str, str], Manoeuvre]:
        """What the focal agents did, by scene and agent."""
        if split not in self.did:
            found, focal = {}, Predictor(ConstantVelocity(), BatchConfig(targets="focal", max_agents=1), CPU)
            for batch, _ in run(focal, SceneStore(self.store, split), progress=False):
                pose = batch.pose[:, : batch.num_targets]
                kind, known = manoeuvres(batch.target, batch.target_valid, pose, batch.period_s)
                for b, s in known.nonzero().tolist():
                    found[batch.scene_id[b], batch.agent_id[b][s]] = Manoeuvre(int(kind[b, s]))
            self.did[split] = found
        return self.did[split]

    def scores(self, source: Path | str, folder: Path, split: str) -> dict[str, Any]:
        """Figures of a checkpoint, or of a model that needs none by its name, and those of its focal agents by manoeuvre.

        Raises:
            TrajformerError: the model does not fit the split.
        """
        kept = folder / "scores.json"
        if isinstance(source, str) or not kept.exists():
            table = folder / "agents.csv"
            scores = evaluate(load_predictor(source, CPU), SceneStore(self.store, split), progress=bars(), rows=table)
            write_json(kept, {"scores": scores, "manoeuvres": self._by_manoeuvre(table, split)})
        return json.loads(kept.read_text())

    def _by_manoeuvre(self, table: Path, split: str) -> dict[str, dict[str, float]]:
        errors, kinds = defaultdict(list), self.kinds(split)
        with table.open(newline="") as file:
            for agent in csv.DictReader(file):
                kind = kinds.get((agent["scenario_id"], agent["track_id"]))
                if kind is not None:
                    errors[kind].append((float(agent["minFDE_6"]), float(agent["MR_6"])))
        means = {kind: [mean(column) for column in zip(*errors[kind], strict=True)] for kind in errors}
        figures = {kind: dict(zip(("minFDE_6", "MR_6"), means.get(kind, []), strict=False)) for kind in Manoeuvre}
        return {kind.label: {"count": len(errors[kind]), **figures[kind]} for kind in Manoeuvre}


def cost(recipe: TrainConfig, folder: Path, store: Path, repeats: int) -> dict[str, Any]:
    """Latency and memory of a row, kept in its folder for as long as its model and batches are the same.

    Raises:
        TrajformerError: it cannot be measured.
    """
    plain = [to_plain(part) for part in (recipe.model, recipe.data.train_batch, recipe.objective())]
    digest = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
    kept = folder / "cost.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    if found.get("recipe") != digest:
        busy = os.getloadavg()[0]
        found = {"recipe": digest, **compare_cost.measure(recipe, store, repeats), "load_before": busy}
        write_json(kept, found)
    return {name: value for name, value in found.items() if name != "recipe"}
