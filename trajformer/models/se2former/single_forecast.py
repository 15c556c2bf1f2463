"""Single forecast: which mode is the most probable one.

Metrics with one forecast per agent score the most probable mode. The mode with the highest score
is rarely the best choice: several modes may share the probability of one manoeuvre. So
`final_modes` exchanges scores in these steps:

1. The scores are divided by a learned temperature. Joint modes are final now.
2. `expected_errors`: the expected distance between the end of each mode and the true end, if the
   true end is that of one of the modes, with their probabilities.
3. The mode with the smallest expected error is chosen.
4. `agent_stays`: for an agent at rest, rest is chosen instead, unless a mode is much better. The
   mode that ends nearest to rest becomes rest.
5. `make_most_probable`: the chosen mode exchanges its score with the most probable mode.
6. `order_nested`: nested modes come before the others in the order of probabilities.

The loss calls `final_modes` too: it trains the temperature such that the final probabilities are
calibrated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajformer.models.se2former.paths import PathProposals

_REST_SCALE = 0.5  # an agent with a smaller motion scale is at rest
_START_GAIN_M = 5.0  # it starts if a mode is expected to be better than rest by more than this
_MARGIN = 1e-6  # relative lead of the most probable score; a smaller one is lost in a softmax


def final_modes(
    proposals: PathProposals, temperature: Tensor, nested: int
) -> tuple[Tensor, Tensor]:
    """Positions [B, S, K, F, 2] and logits of a forecast, [B, S, K] or, for joint modes, [B, K].

    `temperature` is a positive scalar, and `nested` the number of nested modes or 0. With nested
    modes, one of them is chosen.
    """
    modes = proposals.modes
    logit = proposals.logit / temperature
    if proposals.is_joint:
        return modes, logit

    # The choice has no gradient.
    ends = modes[..., -1, :].detach()
    rest = proposals.median.detach()  # the median path of an agent at rest is rest
    rest_end = rest[..., -1, :]
    probability = logit.detach().softmax(-1)
    candidates = ends[:, :, :nested] if nested else ends
    best_error, best = expected_errors(candidates, ends, probability).min(-1, keepdim=True)
    nearest_to_rest = (candidates - rest_end).norm(dim=-1).argmin(-1, keepdim=True)

    rest_error = expected_errors(rest_end, ends, probability)
    stays = agent_stays(proposals.motion_scale[..., 0, 0], rest_error, best_error)  # [B, S, 1]
    chosen = torch.where(stays, nearest_to_rest, best)
    logit = make_most_probable(logit, chosen)
    if nested:
        logit = order_nested(logit, nested)

    is_chosen = torch.arange(modes.shape[2], device=modes.device) == chosen  # [B, S, K]
    becomes_rest = (is_chosen & stays)[..., None, None]
    return torch.where(becomes_rest, rest, modes), logit


def expected_errors(candidate: Tensor, end: Tensor, probability: Tensor) -> Tensor:
    """Expected distances [B, S, C] in metres between candidates and the true end.

    The true end is one of the ends [B, S, K, 2] of the modes, with the probabilities [B, S, K].
    Candidates are [B, S, C, 2].
    """
    distance = (candidate[..., :, None, :] - end[..., None, :, :]).norm(dim=-1)  # [B, S, C, K]
    return (distance * probability[..., None, :]).sum(-1)


def agent_stays(motion_scale: Tensor, rest_error: Tensor, best_error: Tensor) -> Tensor:
    """Which agents stay at rest, bool [B, S, 1].

    An agent at rest stays unless the smallest expected error of a mode is far below that of rest.
    Rest needs this advantage, because scores of agents at rest are poor: they count little in the
    loss. All arguments are [B, S, 1]; `motion_scale` is 0 at rest to 1 in motion, errors are in
    metres.
    """
    at_rest = motion_scale < _REST_SCALE
    return at_rest & (rest_error <= best_error + _START_GAIN_M)


def make_most_probable(logit: Tensor, chosen: Tensor) -> Tensor:
    """Logits [B, S, K] after an exchange of the highest one and that of the mode `chosen`.

    `chosen` [B, S, 1] is an index.
    """
    highest, top = logit.max(-1, keepdim=True)
    # Without this lead, modes that tie in bfloat16 would stay equal.
    lead = _MARGIN * highest.abs().clamp(min=1)
    exchanged = logit.scatter(-1, top, logit.gather(-1, chosen))
    return exchanged.scatter(-1, chosen, highest + lead)


def order_nested(logit: Tensor, nested: int) -> Tensor:
    """The same logits in another order: the first `nested` modes have the highest ones."""
    values, order = logit.sort(-1, descending=True)
    # Nested modes in their order, then the others; all keys differ, so any sort is stable.
    rank = torch.arange(logit.shape[-1], device=logit.device)
    is_other = (order >= nested).long()
    nested_first = order.gather(-1, (is_other * len(rank) + rank).argsort(-1))
    return torch.empty_like(logit).scatter(-1, nested_first, values)
