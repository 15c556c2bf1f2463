"""Scores of models in a comparison, stored in a file of each run."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure import batches, origin

from trajformer.cli.files import bars
from trajformer.data.loading import SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.evaluation.evaluate import evaluate
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.files import write_atomically
from trajformer.scenes.store import SceneStore

if TYPE_CHECKING:
    import pandas as pd

Agents = dict[tuple[str, str], Manoeuvre]  # by scene and track id
ERRORS = ("minFDE6", "MR6")  # by manoeuvre


@functools.cache
def focal_manoeuvres(store: Path, split: str) -> Agents:
    """Recorded manoeuvres of the focal agents."""
    agents = Agents()
    for batch in batches(SceneDataset(SceneStore(store, split), BatchConfig(targets="focal", max_agents=1))):
        observation, truth = batch.observation, batch.truth
        pose = observation.pose[:, : observation.num_targets]
        kind, known = manoeuvres(truth.position, truth.valid, pose, observation.period_s)
        for b, s in known.nonzero().tolist():
            agents[observation.scene_id[b], observation.agent_id[b][s]] = Manoeuvre(int(kind[b, s]))
    return agents


def errors_by_manoeuvre(per_agent: pd.DataFrame, agents: Agents) -> dict[str, dict[str, float]]:
    """Count and mean errors of the focal agents, by the label of the manoeuvre."""
    labels = [agents[key].label if key in agents else None for key in zip(per_agent.scenario_id, per_agent.track_id, strict=True)]
    groups = per_agent[list(ERRORS)].groupby(labels)
    means, counts = groups.mean().to_dict("index"), groups.size()
    return {kind.label: {"count": int(counts.get(kind.label, 0)), **means.get(kind.label, {})} for kind in Manoeuvre}


def scores(source: Path | str, folder: Path, store: Path, split: str) -> dict[str, Any]:
    """Figures of a checkpoint, or of a model without training by its name; stored in scores.json and agents.csv.

    Raises:
        TrajformerError: the model does not fit the split.
    """
    file = folder / "scores.json"
    if isinstance(source, str) or not file.exists():
        evaluation = evaluate(load_predictor(source), SceneStore(store, split), progress=bars())
        by_manoeuvre = errors_by_manoeuvre(evaluation.per_agent, focal_manoeuvres(store, split))
        write_atomically(folder / "agents.csv", evaluation.per_agent.round(6).to_csv(index=False))
        record = origin() | {"scores": evaluation.figures, "manoeuvres": by_manoeuvre}
        write_atomically(file, json.dumps(record, indent=1) + "\n")
    record = json.loads(file.read_text())
    return {"scores": record["scores"], "manoeuvres": record["manoeuvres"]}
