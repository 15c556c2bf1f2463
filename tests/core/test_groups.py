"""Agent-aware attention agrees with its formula over all pairs, on every path that computes it."""

import pytest
import torch
from support.tensors import draw, draw_mask
from torch import Tensor

from trajformer.core import attention
from trajformer.core.attention import AgentAware, Groups, attend, attention_weights
from trajformer.core.multihead import MultiHeadAttention

WIDTH, HEADS = 16, 2
CASES = {  # query steps, key steps, groups
    "self": (3, 3, Groups(4, 4)),
    "self and lanes": (3, 3, Groups(4, 4, (2, 2))),
    "cross": (2, 5, Groups(4, 4)),
    "cross with fewer agents": (2, 5, Groups(3, 4)),
    "cross to lanes": (2, 5, Groups(3, 4, (0, 3))),
    "one agent": (4, 3, Groups(1, 1)),
    "one agent and lanes": (4, 3, Groups(1, 1, (2, 2))),
    "one step": (1, 1, Groups(5, 5)),
}


def sizes(case: str) -> tuple[int, int, Groups]:
    """Number of queries, number of keys, and groups of a case."""
    query_steps, key_steps, groups = CASES[case]
    more_queries, more_keys = groups.ungrouped
    queries = query_steps * groups.queries + more_queries
    keys = key_steps * groups.keys + more_keys
    return queries, keys, groups


def same_group(queries: int, keys: int, groups: Groups) -> Tensor:
    """bool [L, S]: pairs of tokens of the same group."""
    same = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries - groups.ungrouped[0]):
        for j in range(keys - groups.ungrouped[1]):
            same[i, j] = i % groups.queries == j % groups.keys
    return same


def formula(parts: list[Tensor], mask: Tensor | None, groups: Groups) -> Tensor:
    """softmax(M * (Q_self K_self) + (1 - M) * (Q K)) V in float64.

    Zeros if a row of the mask is empty.
    """
    query, key, value, group_query, group_key = (part.double() for part in parts)
    same = same_group(query.shape[-2], key.shape[-2], groups)
    product = torch.where(same, group_query @ group_key.mT, query @ key.mT)
    score = product * query.shape[-1] ** -0.5
    if mask is None:
        return score.softmax(-1) @ value
    return (score.masked_fill(~mask, -1e9).softmax(-1) * mask) @ value


def mixed_mask(queries: int, keys: int, groups: Groups) -> Tensor:
    """A random mask [3, 1, L, S].

    The first rows are empty, limited to the own group, and limited to other groups.
    """
    same = same_group(queries, keys, groups)
    mask = draw_mask(3, 1, queries, keys, share=0.6, seed=7)
    mask[0, 0, 0] = False
    mask[1, 0, 0] = same[0]
    mask[2, 0, 0] = ~same[0]
    return mask


def masks(queries: int, keys: int, groups: Groups) -> dict[str, Tensor | None]:
    same = same_group(queries, keys, groups)
    mixed = mixed_mask(queries, keys, groups)
    padding = draw_mask(3, 1, 1, keys, share=0.7, seed=8)
    padding[1] = False
    causal = torch.arange(queries)[:, None] * keys // queries >= torch.arange(keys)
    return {
        "none": None,
        "mixed": mixed,
        "padding": padding,
        "shared": mixed[0, 0],
        "same group": same,
        "other groups": ~same,
        "causal": causal,
        "causal and mixed": mixed & causal,
    }


def inputs(case: str) -> list[Tensor]:
    """Queries, keys, values, group queries, group keys."""
    queries, keys, _ = sizes(case)
    shapes = [(queries, 6), (keys, 6), (keys, 5), (queries, 6), (keys, 6)]
    return [draw(3, HEADS, *shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


@pytest.fixture(params=[1, 10**9], ids=["head by head", "all at once"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights computed at a time."""
    monkeypatch.setitem(attention.CHUNK_WEIGHTS, "cpu", request.param)


def assert_same_gradients(
    out: Tensor, expected: Tensor, tensors: list[Tensor], references: list[Tensor], name: str = ""
) -> None:
    direction = draw(*out.shape, seed=12)
    (out * direction).sum().backward()
    (expected * direction).sum().backward()
    for a, b in zip(tensors, references, strict=True):
        torch.testing.assert_close(
            a.grad, b.grad, atol=4e-6, rtol=1e-4, msg=lambda text: f"{name}: {text}"
        )


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("case", CASES)
def test_output_and_gradient_equal_the_formula(case: str) -> None:
    queries, keys, groups = sizes(case)
    for name, mask in masks(queries, keys, groups).items():
        parts = inputs(case)
        references = inputs(case)
        out = attend(*parts[:3], mask, agent_aware=AgentAware(*parts[3:], groups))
        expected = formula(references, mask, groups)
        torch.testing.assert_close(
            out.double(),
            expected,
            atol=2e-6,
            rtol=1e-5,
            msg=lambda text, name=name: f"{name}: {text}",
        )
        if mask is not None:
            assert not out[~mask.any(-1).expand(out.shape[:-1])].any()
        assert_same_gradients(out, expected, parts, references, name)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_no_weights_are_saved_for_the_gradient(dropout: float) -> None:
    parts = [torch.randn(2, 2, 96, 4, requires_grad=True) for _ in range(5)]
    saved: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = attend(*parts[:3], dropout=dropout, agent_aware=AgentAware(*parts[3:], Groups(8, 8)))
    assert saved and max(saved) == parts[0].numel() < 96 * 96
    out.sum().backward()


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize(("sign", "group_sign"), [(1, 1), (1, -1), (-1, 1)])
def test_large_scores_stay_finite(sign: int, group_sign: int) -> None:
    q, k, v, group_q, group_k = (part.detach() * 100 for part in inputs("self"))
    parts = [q, k * sign, v, group_q, group_k * group_sign]
    out = attend(*parts[:3], agent_aware=AgentAware(*parts[3:], Groups(4, 4)))
    expected = formula(parts, None, Groups(4, 4))
    torch.testing.assert_close(out.double(), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("case", [None, "self", "cross with fewer agents", "one agent and lanes"])
def test_dropped_weights_have_no_gradient(case: str | None) -> None:
    """With unit vectors as values the output is the weights.

    The same seed drops the same weights.
    """
    queries, keys, groups = sizes(case or "self")
    parts = inputs(case or "self")
    references = inputs(case or "self")
    first = second = None
    if case is not None:
        first = AgentAware(*parts[3:], groups)
        second = AgentAware(*references[3:], groups)
    mask = mixed_mask(queries, keys, groups)
    unit = torch.eye(keys).expand(3, HEADS, keys, keys)
    torch.manual_seed(5)
    with torch.no_grad():
        dropped = attend(parts[0], parts[1], unit, mask, dropout=0.3, agent_aware=first)
    torch.manual_seed(5)
    out = attend(*parts[:3], mask, dropout=0.3, agent_aware=first)
    weights = attention_weights(references[0], references[1], mask, agent_aware=second)
    expected = (weights * (dropped > 0) / (1 - 77 / 256)) @ references[2]
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    assert (dropped == 0).sum() > (weights == 0).sum()
    count = 3 if case is None else 5
    assert_same_gradients(out, expected, parts[:count], references[:count])


def test_agent_aware_scores_need_groups_and_projections() -> None:
    torch.manual_seed(3)
    layer = MultiHeadAttention(WIDTH, HEADS, agent_aware=True).eval()
    plain = MultiHeadAttention(WIDTH, HEADS).eval()
    x = draw(2, 6, WIDTH)
    state = layer.state_dict()
    plain.load_state_dict({name: value for name, value in state.items() if "own" not in name})
    torch.testing.assert_close(layer(x, x), plain(x, x))
    assert torch.equal(plain(x, x, groups=Groups(3, 3)), plain(x, x))
    assert (layer(x, x, groups=Groups(3, 3)) - layer(x, x)).abs().max() > 0.01
