"""Calibration of mode probabilities, and truths near a mode.

The nearest mode of an agent is the one with the smallest end-point error, as in the metrics of
Argoverse 2. Agents without a known last future step have no nearest mode (-1) and NaN. Forecasts
with fewer modes than others are padded with modes and probabilities of NaN.

nearest mode       a model that knows which mode is right has the largest probability there.
brier_term         (1 - p)^2 of the nearest mode, the term that Argoverse 2 adds to minFDE.
brier_score        sum over modes of (p - 1)^2 for the nearest and p^2 for the others (Brier 1950).
                   0 is perfect; K modes of equal probability have 1 - 1 / K.
calibration error  the most probable mode is right if it is the nearest one. Agents are divided by
                   the probability of this mode into 10 bins of equal width; the expected
                   calibration error is the mean over agents of the gap between mean probability and
                   share of right modes in each bin (Guo et al. 2017, equation 3).

Example, for N agents with modes [N, K, F, 2], probabilities [N, K], truth [N, F, 2], valid [N, F]:

    error = end_errors(modes, truth, valid)
    nearest = nearest_mode(error)
    diagram = reliability(probability, nearest)
    expected_calibration_error(diagram)
    np.nanmean(brier_score(probability, nearest))
    np.nanmean(near_any_mode(error), 0), np.nanmean(near_most_probable(error, probability), 0)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NUM_BINS = 10
NEAR_M = (1.0, 2.0, 3.0)


class Reliability(NamedTuple):
    """Data of a reliability diagram with D bins of equal width over [0, 1].

    A bin contains its upper limit, the first one also 0. Empty bins have NaN.
    """

    limit: np.ndarray  # float64 [D + 1], limits of the bins
    agents: np.ndarray  # int64 [D], number of agents
    probability: np.ndarray  # float64 [D], mean probability of the most probable mode
    share_right: np.ndarray  # float64 [D], share of agents whose most probable mode is the nearest


def end_errors(modes: np.ndarray, truth: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """End-point errors float64 [N, K] in metres, NaN without a known last step.

    Args:
        modes: [N, K, F, 2], metres.
        truth: [N, F, 2], metres, in the same frame.
        valid: bool [N, F], known steps of the truth.
    """
    end = np.asarray(truth[:, -1], np.float64)
    gap = modes[:, :, -1] - end[:, None]
    error = np.hypot(gap[..., 0], gap[..., 1])
    return np.where(valid[:, -1, None], error, np.nan)


def nearest_mode(error: np.ndarray) -> np.ndarray:
    """Index int64 [N] of the smallest error [N, K] of each agent; -1 if all are NaN.

    The first of several equal ones.
    """
    known = np.isfinite(error)
    nearest = np.where(known, error, np.inf).argmin(1)
    return np.where(known.any(1), nearest, -1)


def brier_term(probability: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """(1 - p)^2 float64 [N] with p [N, K] of the nearest mode int64 [N]; NaN for -1."""
    rows = np.arange(len(nearest))
    chosen = np.asarray(probability, np.float64)[rows, nearest]
    return np.where(nearest >= 0, (1 - chosen) ** 2, np.nan)


def brier_score(probability: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """Brier scores float64 [N] of probabilities [N, K], see this module; NaN for nearest -1."""
    is_nearest = np.arange(probability.shape[1]) == nearest[:, None]
    square = (np.asarray(probability, np.float64) - is_nearest) ** 2
    return np.where(nearest >= 0, np.nansum(square, 1), np.nan)


def reliability(
    probability: np.ndarray, nearest: np.ndarray, num_bins: int = NUM_BINS
) -> Reliability:
    """The reliability diagram of probabilities [N, K] and nearest modes int64 [N]; -1 is left out.

    Of several most probable modes, the first one is taken.
    """
    scored = np.flatnonzero(nearest >= 0)
    known = np.nan_to_num(np.asarray(probability, np.float64)[scored], nan=-1.0)
    top = known.argmax(1)
    confidence = known[np.arange(len(scored)), top]
    is_right = top == nearest[scored]

    limit = np.linspace(0.0, 1.0, num_bins + 1)
    index = bin_index(confidence, num_bins)
    count = np.bincount(index, minlength=num_bins)
    divisor = np.where(count > 0, count, np.nan)
    mean = np.bincount(index, confidence, num_bins) / divisor
    share = np.bincount(index, is_right, num_bins) / divisor
    return Reliability(limit, count, mean, share)


def bin_index(probability: np.ndarray, num_bins: int = NUM_BINS) -> np.ndarray:
    """The bin int64 [N] of each probability [N]; a bin contains its upper limit."""
    limit = np.linspace(0.0, 1.0, num_bins + 1)
    # sums of probabilities that exceed 1 by rounding belong to the last bin
    return np.clip(np.searchsorted(limit, probability, side="left") - 1, 0, num_bins - 1)


def expected_calibration_error(diagram: Reliability) -> float:
    """Mean gap between probability and share of right modes, weighted by agents; NaN without any.

    0 is perfectly calibrated.
    """
    total = diagram.agents.sum()
    if not total:
        return float("nan")
    gap = np.abs(diagram.probability - diagram.share_right)
    return float(np.nansum(gap * diagram.agents) / total)


def near_any_mode(error: np.ndarray, limits_m: tuple[float, ...] = NEAR_M) -> np.ndarray:
    """1 if a mode ends within each limit of the truth, 0 if none does, float64 [N, L].

    `error` [N, K] are end-point errors. NaN for agents without any.
    """
    smallest = np.where(np.isfinite(error), error, np.inf).min(1)
    has_error = np.isfinite(error).any(1)
    return _within(np.where(has_error, smallest, np.nan), limits_m)


def near_most_probable(
    error: np.ndarray, probability: np.ndarray, limits_m: tuple[float, ...] = NEAR_M
) -> np.ndarray:
    """1 if the most probable mode ends within each limit of the truth, 0 if not, float64 [N, L].

    `error` and `probability` are [N, K]. NaN for agents without an error.
    """
    top = np.nan_to_num(probability, nan=-1.0).argmax(1)
    return _within(error[np.arange(len(error)), top], limits_m)


def _within(error: np.ndarray, limits_m: tuple[float, ...]) -> np.ndarray:
    """1 for errors [N] of at most each limit, 0 for others, NaN for NaN: float64 [N, L]."""
    is_near = error[:, None] <= np.array(limits_m)
    return np.where(np.isnan(error)[:, None], np.nan, is_near)
