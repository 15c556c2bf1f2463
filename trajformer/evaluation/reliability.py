"""Reliability diagrams of forecasts, with 95 % intervals of their shares and of the expected error.

The expected calibration error (`metrics.calibration`) is a sum of absolute values, so noise
enlarges it: a perfectly calibrated forecast of 650 agents has .04 and not 0, and bootstrap
samples have more. Its interval is therefore the basic bootstrap interval (2 error -
percentile; Davison and Hinkley 1997, section 5.2). On 100 simulated forecasts of 650 agents with a
true error of 0, .03, .1 and .2, it contained the true error 61, 91, 87 and 96 times, and the
interval between percentiles 0, 24, 91 and 95 times. Few agents with a small error have too narrow
intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trajformer.evaluation.bootstrap import PERCENTILES, Estimate, SceneSums
from trajformer.evaluation.breakdown import DIAGRAM, FORECAST, estimate
from trajformer.evaluation.columns import SCENE
from trajformer.evaluation.metrics.calibration import NUM_BINS, bin_index
from trajformer.evaluation.scoring import Scoring
from trajformer.evaluation.tables import Cell, Table

if TYPE_CHECKING:
    import pandas as pd

ALL = "all"  # row of all bins


def has_diagram(scoring: Scoring) -> bool:
    """Whether the details of the scoring include the calibration."""
    return DIAGRAM[0] in scoring.detail_columns


def reliability_diagram(scorings: Sequence[Scoring]) -> Table:
    """Bins of the probability of the most probable mode, and how often this mode is the nearest.

    The last row of each forecast is about all agents; its last column has the expected calibration
    error.
    """
    rows: list[tuple[Cell, ...]] = []
    limits = np.linspace(0.0, 1.0, NUM_BINS + 1)
    for one in scorings:
        table = one.per_agent
        probability = table[DIAGRAM[0]].to_numpy(np.float64)
        index = bin_index(probability)
        for number in np.unique(index).tolist():
            name = f"{limits[number]:.1f} to {limits[number + 1]:.1f}"
            of_bin = table[index == number]
            mean = float(of_bin[DIAGRAM[0]].mean())
            [share] = estimate(of_bin, [DIAGRAM[1]]).estimates
            rows.append((name, one.label, len(of_bin), mean, share, abs(mean - share.mean)))
        [share] = estimate(table, [DIAGRAM[1]]).estimates
        error = calibration_error(table)
        rows.append((ALL, one.label, len(table), float(probability.mean()), share, error))
    title = "calibration: most probable mode, share in which it is the nearest; all: expected error"
    columns = ("probability", FORECAST, "agents", "mean", "nearest", "gap")
    return Table("calibration", title, columns, tuple(rows))


def calibration_error(per_agent: pd.DataFrame) -> Estimate:
    """The expected calibration error of a table of agents, with its basic bootstrap interval.

    The error is the sum over bins of |mean over all agents of (probability - is nearest)|, where
    agents of other bins have 0.
    """
    probability = per_agent[DIAGRAM[0]].to_numpy(np.float64)
    gap = probability - per_agent[DIAGRAM[1]].to_numpy(np.float64)
    of_bins = np.zeros((len(gap), NUM_BINS))
    of_bins[np.arange(len(gap)), bin_index(probability)] = gap
    sums = SceneSums.of(of_bins, per_agent[SCENE].to_numpy(str))
    error = float(np.abs(sums.means()).sum())
    if sums.num_scenes < 2:
        return Estimate(error, np.nan, np.nan)
    sampled = np.abs(sums.resampled_means()).sum(1)
    smallest, largest = np.percentile(sampled, PERCENTILES)
    # the samples of a well calibrated forecast may all have larger errors
    high = max(2 * error - float(smallest), error)
    return Estimate(error, max(2 * error - float(largest), 0.0), high)
