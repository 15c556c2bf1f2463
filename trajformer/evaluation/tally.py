"""The tally of scored batches: metrics and table rows of a split, or of a part of it.

Parts of a split may be tallied in several processes. Their contents are joined in the order of the
parts, so that the record does not depend on the number of processes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from trajformer.evaluation.columns import Collector, Rows, ScoredBatch, restricted
from trajformer.evaluation.details import detail_groups
from trajformer.evaluation.scoring import Rules, Scoring


@dataclass(frozen=True, eq=False)
class TallyContents:
    """Plain data of a tally, which passes between processes.

    Attributes:
        rows: of the tables.
        metrics: states of each metric as arrays; a list state is a list of at most one array.
        num_targets: number of forecast agents.
    """

    rows: Rows
    metrics: dict[str, dict[str, Any]]
    num_targets: int

    def record(self) -> dict[str, Any]:
        """The same as dictionaries, lists and tensors, which a file can hold without code."""
        return {
            "rows": _with_tensors(vars(self.rows)),
            "metrics": _with_tensors(self.metrics),
            "num_targets": self.num_targets,
        }

    @classmethod
    def of(cls, record: dict[str, Any]) -> TallyContents:
        """The contents of a record."""
        rows = Rows(**_with_arrays(record["rows"]))
        return cls(rows, _with_arrays(record["metrics"]), record["num_targets"])


class Tally:
    """Collects scored batches; `scoring` is their record."""

    def __init__(self, rules: Rules, device: torch.device = torch.device("cpu")) -> None:
        # imports torchmetrics, which takes seconds
        from trajformer.evaluation.metrics.collection import forecast_metrics

        self.rules = rules
        self.num_targets = 0
        self._metrics = forecast_metrics().to(device)
        self._collector = Collector(rules, detail_groups(rules))

    @property
    def rows(self) -> Rows:
        """The rows of the tables."""
        return self._collector.rows

    def add(self, scored: ScoredBatch) -> None:
        """Add a batch."""
        self.num_targets += int(scored.batch.observation.target_mask.sum())
        counted = replace(scored, batch=restricted(scored.batch, self.rules))
        self._metrics.update(counted.forecast, counted.batch)
        self._collector.add(counted)

    def contents(self) -> TallyContents:
        """The batches so far, for `join` in another process."""
        metrics = {}
        for name, metric in self._metrics.items(keep_base=True):
            metrics[name] = {key: _as_arrays(state) for key, state in metric.metric_state.items()}
        return TallyContents(self.rows, metrics, self.num_targets)

    def join(self, later: TallyContents) -> None:
        """Add a later part of the split, whose tally has the same rules."""
        self.num_targets += later.num_targets
        self.rows.join(later.rows)
        for name, metric in self._metrics.items(keep_base=True):
            states = {key: _as_tensors(state) for key, state in later.metrics[name].items()}
            metric.merge_state(states)

    def scoring(self) -> Scoring:
        """The record with all metrics and tables, without its names."""
        rows = self.rows
        totals: dict[str, float] = {}
        if rows.num_agents:
            with warnings.catch_warnings():
                # torchmetrics counts updates, but not the joined states.
                warnings.filterwarnings("ignore", ".*called before the ``update``.*")
                totals = self._metrics.compute()
        per_agent = rows.per_agent()
        for name in rows.metric_columns:
            totals.setdefault(name, float(per_agent[name].mean()))
        return Scoring(
            metrics=totals,
            per_agent=per_agent,
            per_scene=rows.per_scene(),
            metric_columns=rows.metric_columns,
            detail_columns=rows.detail_columns,
            rules=self.rules,
            num_targets=self.num_targets,
        )


def _with_tensors(value: Any) -> Any:
    """A copy of nested dictionaries and lists, with tensors instead of arrays."""
    if isinstance(value, dict):
        return {key: _with_tensors(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_tensors(part) for part in value]
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    return value.item() if isinstance(value, np.generic) else value


def _with_arrays(value: Any) -> Any:
    """The inverse of `_with_tensors`."""
    if isinstance(value, dict):
        return {key: _with_arrays(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_arrays(part) for part in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _as_arrays(state: Any) -> Any:
    """The state of a metric as an array; a list of tensors as a list of one array."""
    if isinstance(state, list):
        return [torch.cat(state).cpu().numpy()] if state else []
    return state.cpu().numpy()


def _as_tensors(state: Any) -> Any:
    if isinstance(state, list):
        return [_as_tensors(array) for array in state]
    return torch.from_numpy(np.array(state))  # a copy: arrays of other processes are read-only
