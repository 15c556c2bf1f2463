"""Single forecast: from the output of the network to the modes and probabilities of a forecast.

Metrics with one forecast per agent score the most probable mode. So one mode moves to the best
single path that modes and median give, and becomes the most probable one. `final_modes` calls the
steps in this order:

1. `calibrate`: the scores are divided by a learned temperature. Joint modes are final now.
2. `agreement`: two paths are of one manoeuvre if the end of one is near the other path.
3. `main_manoeuvre`: the modes of the most probable manoeuvre. Only these count, because an
   average of two manoeuvres would leave the road.
4. `manoeuvre_mean`: the mean of these modes, weighted by probability.
5. `agent_starts`: an agent at rest starts if most of its modes do.
6. `mean_weight`: the single path lies between the median and this mean, because their errors
   differ. It is their middle for an agent that moves. For an agent at rest it is the median,
   which is rest, or the mean if the agent starts.
7. `nearest_mode`: the mode that ends nearest to the single path is chosen.
8. `make_most_probable`: it exchanges its score with the most probable mode.
9. `order_nested`: nested modes come before the others in the order of probabilities.
10. `move_mode`: the chosen mode moves two thirds of the way to the single path, or all the way
    for an agent at rest.

Steps 2 to 6 are `single_path`, computed without a gradient. The loss calls `final_modes` too: it
trains the temperature such that the final probabilities are calibrated.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trajformer.models.se2former.paths import PathProposals

_SAME_M = 2.0  # the end of a path is this near to a path of the same manoeuvre; half a lane
_SEGMENTS = 12  # straight segments of a path, for its distance from an end
_START_M = 7.0  # a mode of an agent at rest that ends this far from the median starts
_START_PROBABILITY = 0.8  # such an agent starts if this probability of its modes starts
_MIN_LENGTH_M2 = 1e-6  # squared length of a segment; avoids a division by zero
_KEPT = 1 / 3  # fraction of the way that a mode of a moving agent does not move
_MARGIN = 1e-6  # relative lead of the most probable score; a smaller one is lost in a softmax


def final_modes(
    proposals: PathProposals, temperature: Tensor, nested: int
) -> tuple[Tensor, Tensor]:
    """Positions [B, S, K, F, 2] and logits of a forecast, [B, S, K] or, for joint modes, [B, K].

    `temperature` is a positive scalar, and `nested` the number of nested modes or 0.
    """
    modes = proposals.modes
    logit = calibrate(proposals.logit, temperature)
    if proposals.is_joint:
        return modes, logit
    single = single_path(modes, proposals.median, logit, proposals.motion_scale)
    chosen = nearest_mode(modes, single, nested)
    logit = make_most_probable(logit, chosen)
    if nested:
        logit = order_nested(logit, nested)
    return move_mode(modes, single, chosen, proposals.motion_scale), logit


def calibrate(logit: Tensor, temperature: Tensor) -> Tensor:
    """Logits divided by the temperature."""
    return logit / temperature


@torch.no_grad()
def single_path(modes: Tensor, median: Tensor, logit: Tensor, motion_scale: Tensor) -> Tensor:
    """The single path [B, S, 1, F, 2] of each target, in its frame.

    Args:
        modes: [B, S, K, F, 2], metres.
        median: [B, S, 1, F, 2].
        logit: [B, S, K].
        motion_scale: [B, S, 1, 1, 1], 0 at rest to 1 in motion.
    """
    probability = logit.softmax(-1)
    agree = agreement(torch.cat([modes, median], 2))  # [B, S, K + 1, K + 1]
    member = main_manoeuvre(agree[..., :-1, :-1], probability)
    mean = manoeuvre_mean(modes, probability, member)
    median_agrees = (member & agree[..., -1, :-1]).any(-1)
    starts = agent_starts(modes, median, probability)
    return median.lerp(mean, mean_weight(motion_scale, median_agrees, starts))


def agreement(path: Tensor) -> Tensor:
    """Which pairs of paths [B, S, K, F, 2] are of one manoeuvre: bool [B, S, K, K], symmetric.

    The end of one of both is at most 2 m from the other path, which begins at the target, the
    origin. Products are accumulated in place, because this step is a relevant part of the latency.
    """
    count = path.shape[-2]
    segments = min(count, _SEGMENTS)
    index = torch.linspace(0, count - 1, segments, device=path.device).round().long()
    x, y = path.index_select(-2, index).unbind(-1)  # [B, S, K, P], ends of segments
    start_x = nn.functional.pad(x[..., :-1], (1, 0))
    start_y = nn.functional.pad(y[..., :-1], (1, 0))
    segment_x = (x - start_x)[:, :, None]
    segment_y = (y - start_y)[:, :, None]

    # Vectors from the start of each segment of path k to the end of path j, [B, S, j, k, P].
    to_x = x[..., None, -1:] - start_x[:, :, None]
    to_y = y[..., None, -1:] - start_y[:, :, None]

    # The nearest point of a segment: the projection of the vector, limited to the segment.
    length_m2 = torch.addcmul(segment_x * segment_x, segment_y, segment_y)
    product = torch.addcmul(to_x * segment_x, to_y, segment_y)
    fraction = product.div_(length_m2.clamp_(min=_MIN_LENGTH_M2)).clamp_(0, 1)
    gap_x = torch.addcmul(to_x, fraction, segment_x, value=-1)
    gap_y = torch.addcmul(to_y, fraction, segment_y, value=-1)
    distance_m2 = torch.addcmul(gap_x * gap_x, gap_y, gap_y).amin(-1)
    near = distance_m2 <= _SAME_M**2
    return near | near.transpose(-1, -2)


def main_manoeuvre(agree: Tensor, probability: Tensor) -> Tensor:
    """The modes of the most probable manoeuvre, bool [B, S, K].

    For each mode, the probabilities [B, S, K] of all modes that agree with it, by bool
    [B, S, K, K], are added. The mode with the largest sum and the modes that agree with it count.
    """
    support = (agree * probability[..., None, :]).sum(-1)
    best = support.argmax(-1)[..., None, None]
    return agree.take_along_dim(best, 2)[:, :, 0]


def manoeuvre_mean(modes: Tensor, probability: Tensor, member: Tensor) -> Tensor:
    """Mean [B, S, 1, F, 2] of the modes [B, S, K, F, 2] that are members, bool [B, S, K]."""
    weight = (member * probability)[..., None, None]
    return (weight * modes).sum(2, keepdim=True) / weight.sum(2, keepdim=True)


def agent_starts(modes: Tensor, median: Tensor, probability: Tensor) -> Tensor:
    """Which agents would start if they are at rest, bool [B, S, 1, 1, 1].

    Modes with most of the probability end far from the median.
    """
    gap = modes[..., -1:, :] - median[..., -1:, :]
    away = gap.norm(dim=-1, keepdim=True) > _START_M
    return (probability[..., None, None] * away).sum(2, keepdim=True) > _START_PROBABILITY


def mean_weight(motion_scale: Tensor, median_agrees: Tensor, starts: Tensor) -> Tensor:
    """Weight of the mean in the single path, [B, S, 1, 1, 1]; the rest is the weight of the median.

    It is 1/2 for an agent that moves, and 0 for an agent at rest, or 1 if this agent starts. If
    the median is not of the main manoeuvre (`median_agrees`, bool [B, S]), it is 1.
    """
    half = motion_scale / 2
    weight = torch.where(starts, 1 - half, half)
    return torch.where(median_agrees[..., None, None, None], weight, 1.0)


def nearest_mode(modes: Tensor, single: Tensor, nested: int) -> Tensor:
    """Index [B, S, 1] of the mode that ends nearest to the single path, among the nested modes."""
    candidates = modes[:, :, :nested] if nested else modes
    gap = candidates[..., -1, :] - single[..., -1, :]
    return gap.norm(dim=-1).argmin(-1, keepdim=True)


def make_most_probable(logit: Tensor, chosen: Tensor) -> Tensor:
    """Logits [B, S, K] after an exchange of the highest one and that of the mode `chosen`."""
    highest, top = logit.max(-1, keepdim=True)
    # Without this lead, modes that tie in bfloat16 would stay equal.
    lead = _MARGIN * highest.abs().clamp(min=1)
    exchanged = logit.scatter(-1, top, logit.take_along_dim(chosen, -1))
    return exchanged.scatter(-1, chosen, highest + lead)


def order_nested(logit: Tensor, nested: int) -> Tensor:
    """The same logits in another order: the first `nested` modes have the highest ones."""
    values, order = logit.sort(-1, descending=True)
    is_other = (order >= nested).byte()
    nested_first = order.take_along_dim(is_other.argsort(stable=True, dim=-1), -1)
    return torch.empty_like(logit).scatter(-1, nested_first, values)


def move_mode(modes: Tensor, single: Tensor, chosen: Tensor, motion_scale: Tensor) -> Tensor:
    """Modes [B, S, K, F, 2] after the mode `chosen` moved to the single path.

    For an agent that moves, it moves two thirds of the way only: a mode that moves all the way no
    longer covers its own future.
    """
    is_chosen = torch.arange(modes.shape[2], device=modes.device) == chosen  # [B, S, K]
    fraction = is_chosen[..., None, None] * (1 - _KEPT * motion_scale)
    return modes.lerp(single, fraction)
