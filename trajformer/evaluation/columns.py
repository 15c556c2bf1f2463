"""Columns of the table of agents, computed from batches of scenes and forecasts.

To add columns, write a function (scored batch, rules) -> {name: values [B, S]} and add a line to
`COLUMN_GROUPS`. Values are NaN for agents that have none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch, Truth
from trajformer.data.distances import first_center
from trajformer.data.forecast import Forecast
from trajformer.evaluation.metrics.displacement import (
    KS,
    NAMES,
    agent_errors,
    best_end,
    displacement,
    separate_minima,
)
from trajformer.evaluation.metrics.joint import multi_world_of_joint
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.evaluation.scoring import MOVING_M, Rules
from trajformer.scenes.scene import AgentKind, AgentRole, Scene
from trajformer.scenes.spec import DataSpec

if TYPE_CHECKING:
    import pandas as pd

SCENE = "scenario_id"
TRACK = "track_id"


@dataclass(frozen=True, eq=False)
class ScoredBatch:
    """Some scenes and their forecast.

    Attributes:
        scenes: B scenes with their whole map.
        batch: the same scenes. Agents that do not count have no valid step in `truth`.
        forecast: of the targets of the batch.
    """

    scenes: Sequence[Scene]
    batch: SceneBatch
    forecast: Forecast


class Columns(NamedTuple):
    """A group of columns.

    `kind` is "error" or "detail" for columns that have means, "other" for properties of agents.
    """

    values: Callable[[ScoredBatch, Rules], dict[str, Tensor]]
    kind: Literal["error", "detail", "other"]


def restricted(batch: SceneBatch, rules: Rules) -> SceneBatch:
    """The batch with valid truth only for the agents that count by the rules."""
    truth = batch.truth
    counts = truth.valid[..., -1]
    if rules.complete:
        counts = counts & truth.valid.all(-1)
    if rules.moving:
        present = batch.observation.pose[:, : batch.observation.num_targets, :2]
        distance = (truth.position[:, :, -1] - present).norm(dim=-1)
        counts = counts & (distance >= MOVING_M)
    valid = truth.valid & counts[..., None]
    return SceneBatch(batch.observation, Truth(truth.position, valid))


def _displacement(scored: ScoredBatch, rules: Rules) -> dict[str, Tensor]:
    errors, _ = displacement(scored.forecast, scored.batch)
    errors.pop("minFDE")  # of all modes
    return errors


def _motion(scored: ScoredBatch, rules: Rules) -> dict[str, Tensor]:
    """Seconds since targets were first seen, and metres that they move until now and from now.

    Metres are distances between means over half a second, because single positions of recordings
    are noisy. Also the number of recorded future steps.
    """
    observation = scored.batch.observation
    truth = scored.batch.truth
    period_s = observation.period_s
    position = observation.position[:, : observation.num_targets]
    valid = observation.valid[:, : observation.num_targets]
    first_step = valid.int().argmax(-1)
    first = first_center(position, valid, period_s)
    last = first_center(position.flip(2), valid.flip(2), period_s)
    end = first_center(truth.position.flip(2), truth.valid.flip(2), period_s)
    return {
        "history_s": (observation.num_history - 1 - first_step) * period_s,
        "history_m": (last - first).norm(dim=-1),
        "future_m": (end - last).norm(dim=-1),
        "future_steps": truth.valid.sum(-1),
    }


def _speed(scored: ScoredBatch, rules: Rules) -> dict[str, Tensor]:
    """Speed in the last observed step, in metres per second."""
    observation = scored.batch.observation
    velocity = observation.velocity[:, : observation.num_targets, -1]
    return {"speed": velocity.norm(dim=-1)}


def horizon_name(name: str, horizon_s: float) -> str:
    """The column of a metric at a shorter horizon: minFDE6@3s."""
    return f"{name}@{horizon_s:g}s"


def _horizons(scored: ScoredBatch, rules: Rules) -> dict[str, Tensor]:
    """The metrics of `best_end` as if the forecast ended at each of the shorter horizons.

    So the best mode may differ between horizons. NaN for agents that are not recorded at this step.
    """
    batch = scored.batch
    forecast = scored.forecast
    spec = DataSpec.of(scored.scenes[0])
    columns = {}
    for horizon_s, step in zip(rules.horizons_s, rules.steps(spec), strict=True):
        shorter = replace(forecast, position=forecast.position[..., :step, :])
        valid = batch.truth.valid[..., :step]
        errors = agent_errors(shorter, batch.truth.position[..., :step, :], valid)
        for k in counts_of_modes(forecast, rules):
            best = best_end(errors.most_probable(k))
            for name in NAMES:
                values = best[name].masked_fill(~valid[..., -1], torch.nan)
                columns[horizon_name(f"{name}{k}", horizon_s)] = values
    return columns


def usual_counts(forecast: Forecast) -> list[int]:
    """The numbers of modes of the usual metrics: 1, 6, and 20 if there are 20 modes."""
    return [k for k in KS if k <= max(forecast.num_modes, 6)]


def counts_of_modes(forecast: Forecast, rules: Rules) -> list[int]:
    """The usual numbers of modes, and `best_of`."""
    counts = usual_counts(forecast)
    if rules.best_of is not None and rules.best_of not in counts:
        counts.append(rules.best_of)
    return counts


def _best_of(scored: ScoredBatch, rules: Rules) -> dict[str, Tensor]:
    """Errors of the best of `best_of` modes, by `best_end`, and separate minima.

    The latter, ADE and FDE, are the rule of ETH/UCY.
    """
    k = rules.best_of
    if k is None:
        return {}
    truth = scored.batch.truth
    errors = agent_errors(scored.forecast, truth.position, truth.valid).most_probable(k)
    best = best_end(errors)
    minima = separate_minima(errors)
    columns = {}
    if k not in usual_counts(scored.forecast):  # those are columns of `_displacement`
        columns = {f"{name}{k}": best[name] for name in NAMES}
    for name in ("ADE", "FDE"):
        columns[f"{name}{k}"] = minima[name]
    return columns


COLUMN_GROUPS: tuple[Columns, ...] = (
    Columns(_displacement, "error"),
    Columns(_motion, "other"),
    Columns(_speed, "other"),
    Columns(_best_of, "error"),
    Columns(_horizons, "error"),
)


@dataclass(eq=False)
class Rows:
    """The values of some agents and scenes by column; plain data that passes between processes.

    Attributes:
        num_agents: number of agents.
        texts: columns of text of the table of agents.
        numbers: columns of numbers, as arrays of some agents each.
        names: names of the columns of each kind (`Columns`), in their order.
        scenes: columns of the table of scenes, which only joint forecasts have.
    """

    num_agents: int = 0
    texts: dict[str, list[str]] = field(default_factory=partial(defaultdict, list))
    numbers: dict[str, list[np.ndarray]] = field(default_factory=partial(defaultdict, list))
    names: dict[str, dict[str, None]] = field(default_factory=partial(defaultdict, dict))
    scenes: dict[str, list[Any]] = field(default_factory=partial(defaultdict, list))

    def join(self, later: Rows) -> None:
        """Add the agents and scenes of a later part of the split."""
        self.num_agents += later.num_agents
        for text, values in later.texts.items():
            self.texts[text] += values
        for number, arrays in later.numbers.items():
            self.numbers[number] += arrays
        for kind, names in later.names.items():
            self.names[kind] |= names
        for column, entries in later.scenes.items():
            self.scenes[column] += entries

    def per_agent(self) -> pd.DataFrame:
        """The table of agents."""
        import pandas as pd

        first = (SCENE, TRACK, "type")
        columns: dict[str, Any] = {name: self.texts[name] for name in first}
        numbers = {name: np.concatenate(parts) for name, parts in self.numbers.items()}
        for name in _FIRST_NUMBERS:
            if name in numbers:
                columns[name] = numbers[name]
        for name in ("manoeuvre", "role", "city"):
            columns[name] = self.texts[name]
        columns |= numbers  # keeps the position of columns that it has already
        return pd.DataFrame(columns)

    def per_scene(self) -> pd.DataFrame:
        """The table of scenes."""
        import pandas as pd

        return pd.DataFrame(self.scenes)

    @property
    def metric_columns(self) -> tuple[str, ...]:
        """Names of the columns with errors."""
        return tuple(self.names["error"])

    @property
    def detail_columns(self) -> tuple[str, ...]:
        """Names of the further columns that have means."""
        return tuple(self.names["detail"])


class Collector:
    """Collects the rows of the table of agents, and of the table of scenes of joint forecasts."""

    def __init__(self, rules: Rules, details: Sequence[Columns] = ()) -> None:
        self.rules = rules
        self.groups = [*COLUMN_GROUPS, *details]
        self.rows = Rows()

    def add(self, scored: ScoredBatch) -> None:
        """Add the agents of a batch with a valid last future step."""
        counts = scored.batch.truth.valid[..., -1]
        agents = counts.nonzero().tolist()
        self.rows.num_agents += len(agents)
        self._add_names(scored, agents)
        for group in self.groups:
            for name, values in group.values(scored, self.rules).items():
                selected = values[counts].cpu().numpy()
                if selected.dtype.kind == "f":
                    selected = selected.astype(np.float64)
                self.rows.numbers[name].append(selected)
                if not name.startswith("probability"):
                    self.rows.names[group.kind].setdefault(name)
        if scored.forecast.is_joint:
            self._add_worlds(scored)

    def _add_names(self, scored: ScoredBatch, agents: list[list[int]]) -> None:
        """Add the columns of text."""
        observation = scored.batch.observation
        truth = scored.batch.truth
        kinds = observation.agent_kind.tolist()
        roles = observation.agent_role.tolist()
        pose = observation.pose[:, : observation.num_targets]
        manoeuvre, _ = manoeuvres(truth.position, truth.valid, pose, observation.period_s)
        manoeuvre_rows = manoeuvre.tolist()
        texts = self.rows.texts
        for scene, agent in agents:
            texts[SCENE].append(observation.scene_id[scene])
            texts[TRACK].append(observation.agent_id[scene][agent])
            texts["type"].append(_KIND_NAMES[kinds[scene][agent]])
            texts["manoeuvre"].append(_MANOEUVRE_NAMES[manoeuvre_rows[scene][agent]])
            texts["role"].append(_ROLE_NAMES[roles[scene][agent]])
            texts["city"].append(scored.scenes[scene].city)

    def _add_worlds(self, scored: ScoredBatch) -> None:
        """Add the scenes with an actor to the table of scenes."""
        metrics, counts = multi_world_of_joint(scored.forecast, scored.batch)
        for scene in counts.nonzero().flatten().tolist():
            self.rows.scenes[SCENE].append(scored.batch.observation.scene_id[scene])
        for name, values in metrics.items():
            self.rows.scenes[name] += values[counts].double().tolist()


_KIND_NAMES = {int(kind): kind.name.lower() for kind in AgentKind}
_ROLE_NAMES = {int(role): role.name.lower() for role in AgentRole}
_MANOEUVRE_NAMES = {int(kind): kind.label for kind in Manoeuvre}
_MOTION = ("history_s", "history_m", "future_m", "future_steps")
_ERRORS = [f"{name}{k}" for k in KS for name in (*NAMES, "probability")]
_FIRST_NUMBERS = (*_ERRORS, *_MOTION)  # before the columns that later versions added
