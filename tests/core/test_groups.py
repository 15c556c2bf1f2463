"""Agent-aware attention against its formula written out over all pairs, on every path that computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trajformer.core import recompute
from trajformer.core.attention import MultiHeadAttention, attend, attention_weights
from trajformer.core.cache import KVCache, StaticKVCache
from trajformer.core.groups import AgentAware, Groups
from trajformer.core.recompute import query_spans

WIDTH, HEADS = 16, 2
CASES = {  # steps of queries and of keys, groups
    "self": (3, 3, Groups(4, 4)),
    "self, lanes behind": (3, 3, Groups(4, 4, (2, 2))),
    "cross": (2, 5, Groups(4, 4)),
    "cross, fewer agents": (2, 5, Groups(3, 4)),
    "cross, lanes among the keys": (2, 5, Groups(3, 4, (0, 3))),
    "one agent": (4, 3, Groups(1, 1)),
    "one agent and lanes": (4, 3, Groups(1, 1, (2, 2))),
    "one step": (1, 1, Groups(5, 5)),
}


def sizes(case: str) -> tuple[int, int, Groups]:
    """Queries, keys and groups of a case."""
    steps, seen, groups = CASES[case]
    return steps * groups.queries + groups.ungrouped[0], seen * groups.keys + groups.ungrouped[1], groups


def pairs(queries: int, keys: int, groups: Groups) -> Tensor:
    """Which tokens belong together, pair by pair."""
    same = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries - groups.ungrouped[0]):
        for j in range(keys - groups.ungrouped[1]):
            same[i, j] = i % groups.queries == j % groups.keys
    return same


def formula(parts: list[Tensor], mask: Tensor | None, groups: Groups) -> Tensor:
    """softmax(M * (Q_self K_self) + (1 - M) * (Q K)) V in float64; zeros where a row of the mask is empty."""
    query, key, value, own_query, own_key = (part.double() for part in parts)
    same = pairs(query.shape[-2], key.shape[-2], groups)
    score = torch.where(same, own_query @ own_key.mT, query @ key.mT) * query.shape[-1] ** -0.5
    if mask is None:
        return score.softmax(-1) @ value
    weights = score.masked_fill(~mask, -1e9).softmax(-1) * mask  # a constant that only an oracle may use
    return weights @ value


def masks(queries: int, keys: int, groups: Groups) -> dict[str, Tensor | None]:
    """Masks of all shapes and kinds: rows that see nothing, their own group alone, or all but that."""
    same, generator = pairs(queries, keys, groups), torch.Generator().manual_seed(7)
    mixed = torch.rand(3, 1, queries, keys, generator=generator) > 0.4
    mixed[0, 0, 0] = False
    mixed[1, 0, 0] = same[0]
    mixed[2, 0, 0] = ~same[0]
    padding = torch.rand(3, 1, 1, keys, generator=generator) > 0.3
    padding[1] = False
    causal = torch.arange(queries)[:, None] * keys // queries >= torch.arange(keys)
    made = {"none": None, "mixed": mixed, "padding": padding, "for all alike": mixed[0, 0], "own alone": same, "others": ~same}
    return made | {"causal": causal, "causal and mixed": mixed & causal}


@pytest.mark.parametrize("groups", [None, Groups(4, 4)])
def test_keys_after_all_that_a_span_of_queries_may_attend_to_are_left_out(groups: Groups | None) -> None:
    causal = torch.ones(6, 6, dtype=torch.bool).tril().repeat_interleave(40, 0).repeat_interleave(40, 1)
    hidden = torch.stack([~causal, torch.ones_like(causal)])  # who sees nothing needs no keys
    spans = query_spans(hidden, 240, 240, groups)
    assert [(part.start, part.stop, end) for part, end in spans] == [
        (0, 60, 80),
        (60, 120, 120),
        (120, 180, 200),
        (180, 240, 240),
    ]
    assert query_spans(hidden[:, :, :200], 240, 200, Groups(4, 4, (0, 4))) == ((slice(0, 240), 200),)
    assert query_spans(hidden[:, 100:101], 240, 240, groups) == ((slice(0, 240), 120),)
    assert query_spans(hidden[1:], 240, 240, groups)[0] == (slice(0, 60), 4 if groups else 1)


def inputs(case: str) -> list[Tensor]:
    """Queries, keys, values, own queries, own keys."""
    queries, keys, _ = sizes(case)
    generator = torch.Generator().manual_seed(1)
    shapes = [(queries, 6), (keys, 6), (keys, 5), (queries, 6), (keys, 6)]
    return [torch.randn(3, HEADS, *shape, generator=generator, requires_grad=True) for shape in shapes]


@pytest.fixture(params=[(1, 32), (10**9, 32), (10**9, 1)], ids=["head by head", "all at once", "in spans of queries"])
def entries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many weights are made at a time, at least those of one head, and of how many queries at least."""
    monkeypatch.setitem(recompute.CHUNK_WEIGHTS, "cpu", request.param[0])
    monkeypatch.setattr(recompute, "MIN_SPAN", request.param[1])
    return int(request.param[0])


@pytest.mark.parametrize("case", CASES)
def test_attention_is_the_formula_and_its_gradient_is_the_formulas(case: str, entries: int) -> None:
    queries, keys, groups = sizes(case)
    for name, mask in masks(queries, keys, groups).items():
        ours, theirs = inputs(case), inputs(case)
        out = attend(*ours[:3], mask, agent_aware=AgentAware(*ours[3:], groups))
        expected = formula(theirs, mask, groups)
        torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        if mask is not None:
            assert not out[~mask.any(-1).expand(out.shape[:-1])].any()
        direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
        (out * direction).sum().backward()
        (expected * direction).sum().backward()
        for a, b in zip(ours, theirs, strict=True):
            assert a.grad is not None and b.grad is not None
            torch.testing.assert_close(a.grad, b.grad, atol=2e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_no_weights_are_kept_for_the_gradient(dropout: float) -> None:
    parts = [torch.randn(2, 2, 96, 4, requires_grad=True) for _ in range(5)]
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (sizes.append(x.numel()), x)[1], lambda x: x):
        out = attend(*parts[:3], dropout=dropout, agent_aware=AgentAware(*parts[3:], Groups(8, 8)))
    assert sizes and max(sizes) == parts[0].numel() < 96 * 96
    out.sum().backward()


def test_large_scores_stay_finite(entries: int) -> None:
    parts = [part.detach() * 100 for part in inputs("self")]
    for own, other in ((1.0, 1.0), (-1.0, 1.0), (1.0, -1.0)):
        q, k, v, oq, ok = parts[0], parts[1] * other, parts[2], parts[3], parts[4] * own
        out = attend(q, k, v, agent_aware=AgentAware(oq, ok, Groups(4, 4)))
        torch.testing.assert_close(out.double(), formula([q, k, v, oq, ok], None, Groups(4, 4)), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("case", [None, "self", "cross, fewer agents", "one agent and lanes"])
def test_the_gradient_is_that_of_the_weights_that_were_not_dropped(case: str | None, entries: int) -> None:
    """With unit vectors as values what comes out are the weights; the same seed drops the same."""
    queries, keys, groups = sizes(case or "self")
    parts, other = inputs(case or "self"), inputs(case or "self")
    own = [] if case is None else [AgentAware(*of[3:], groups) for of in (parts, other)]
    mask = masks(queries, keys, groups)["mixed"]
    unit = torch.eye(keys).expand(3, HEADS, keys, keys)
    torch.manual_seed(5)
    thinned = attend(parts[0].detach(), parts[1].detach(), unit, mask, dropout=0.3, agent_aware=own[0] if own else None)
    torch.manual_seed(5)
    out = attend(*parts[:3], mask, dropout=0.3, agent_aware=own[0] if own else None)
    whole = attention_weights(other[0], other[1], mask, agent_aware=own[1] if own else None)
    expected = (whole * (thinned.detach() > 0) / (1 - 77 / 256)) @ other[2]
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    assert (thinned == 0).sum() > (whole == 0).sum()
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (out * direction).sum().backward()
    (expected * direction).sum().backward()
    for a, b in zip(parts[: 3 if case is None else 5], other, strict=False):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, atol=2e-6, rtol=1e-4)


def test_all_dropped_is_nothing_and_nobody_attends_to_nobody() -> None:
    parts, groups = inputs("self"), Groups(4, 4)
    out = attend(*parts[:3], dropout=1.0, agent_aware=AgentAware(*parts[3:], groups))
    out.sum().backward()
    assert not out.any() and all(part.grad is not None and not part.grad.any() for part in parts)
    none = torch.zeros(3, HEADS, 0, 6)
    assert attend(none, parts[1], parts[2], agent_aware=AgentAware(none, parts[4], Groups(0, 4))).shape == (3, HEADS, 0, 5)
    assert not attend(parts[0], none, none[..., :5], agent_aware=AgentAware(parts[3], none, groups)).any()


def test_bf16_is_close(entries: int) -> None:
    for dropout in (0.0, 0.3):
        results = []
        for kind in (torch.float32, torch.bfloat16):
            parts = inputs("self, lanes behind")
            low = [part.to(kind) for part in parts]
            torch.manual_seed(1)
            out = attend(*low[:3], dropout=dropout, agent_aware=AgentAware(*low[3:], CASES["self, lanes behind"][2]))
            assert out.dtype == kind
            out.float().square().sum().backward()
            results.append([out.detach().float(), *(part.grad for part in parts)])
        for exact, rough in zip(*results, strict=True):
            assert (exact - rough).abs().max() < 0.05 * exact.abs().max() + 0.02


@pytest.mark.parametrize("case", ["self", "cross, lanes among the keys"])
def test_dropout_drops_weights_and_leaves_empty_rows_alone(case: str) -> None:
    torch.manual_seed(0)
    queries, keys, groups = sizes(case)
    parts, mask = inputs(case), masks(queries, keys, groups)["mixed"]
    value = torch.eye(keys).expand(3, HEADS, keys, keys).clone().requires_grad_()  # what comes out are the weights
    exact = attend(parts[0], parts[1], value, mask, agent_aware=AgentAware(*parts[3:], groups)).detach()

    def draw() -> Tensor:
        return attend(parts[0], parts[1], value, mask, dropout=0.25, agent_aware=AgentAware(*parts[3:], groups))

    with torch.no_grad():
        kept = torch.stack([draw() for _ in range(400)])
    seen = exact > 0
    assert mask is not None and torch.equal(seen, mask.expand(exact.shape))
    assert ((kept == 0) | torch.isclose(kept, exact / 0.75, rtol=1e-4)).all()
    torch.testing.assert_close((kept[:, seen] > 0).float().mean(), torch.tensor(0.75), atol=0.005, rtol=0)
    torch.testing.assert_close(kept.mean(0), exact, atol=0.12, rtol=0)
    assert not kept[:, :, :, 0][:, 0].any()  # an empty row
    draw().square().sum().backward()
    for part in (*parts[:2], value, *parts[3:]):
        assert part.grad is not None and part.grad.isfinite().all() and part.grad.any()


def layer(**options: Any) -> MultiHeadAttention:
    torch.manual_seed(3)
    made = MultiHeadAttention(WIDTH, HEADS, agent_aware=True, **options)
    for part in made.children():
        assert isinstance(part, torch.nn.Linear)
        torch.nn.init.normal_(part.bias, std=0.3)
    return made.eval()


def written_out(made: MultiHeadAttention, x: Tensor, memory: Tensor, mask: Tensor | None, groups: Groups) -> Tensor:
    """A layer's output by the formula."""
    assert made.own_query is not None and made.own_key is not None
    names = (made.query, x), (made.key, memory), (made.value, memory), (made.own_query, x), (made.own_key, memory)
    parts = [part(y).unflatten(-1, (HEADS, -1)).transpose(-3, -2) for part, y in names]
    out = formula(parts, None if mask is None else mask.unsqueeze(-3), groups)
    return made.out(out.float().transpose(-3, -2).flatten(-2))


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("case", CASES)
def test_a_layer_has_two_pairs_of_projections(case: str, entries: int) -> None:
    queries, keys, groups = sizes(case)
    made, x, memory = layer(), tokens(3, queries), tokens(3, keys, seed=1)
    mask = masks(queries, keys, groups)["mixed"]
    assert mask is not None
    for real in (None, mask[:, 0]):
        expected = written_out(made, x, memory, real, groups)
        torch.testing.assert_close(made(x, memory, mask=real, groups=groups), expected, atol=1e-5, rtol=1e-5)
        weights = made.weights(x, memory, mask=real, groups=groups)
        value = made.value(memory).unflatten(-1, (HEADS, -1)).transpose(-3, -2)
        rebuilt = made.out((weights @ value).transpose(-3, -2).flatten(-2))
        torch.testing.assert_close(rebuilt, expected, atol=1e-5, rtol=1e-5)


def test_without_groups_there_is_one_term_and_without_own_projections_groups_are_nothing() -> None:
    made, x = layer(), tokens(2, 6)
    plain = MultiHeadAttention(WIDTH, HEADS).eval()
    plain.load_state_dict({name: value for name, value in made.state_dict().items() if "own" not in name})
    torch.testing.assert_close(made(x, x), plain(x, x))
    assert torch.equal(plain(x, x, groups=Groups(3, 3)), plain(x, x))
    assert (made(x, x, groups=Groups(3, 3)) - made(x, x)).abs().max() > 0.01


def test_sets_of_queries_share_keys(entries: int) -> None:
    made, groups = layer(), Groups(2, 3, (0, 1))
    x, memory, mask = tokens(3, 4, 6), tokens(3, 10, seed=1), torch.rand(3, 6, 10) > 0.3
    for real in (None, mask, mask[:, :1]):
        together = made(x, memory, mask=real, groups=groups)
        weights = made.weights(x, memory, mask=real, groups=groups)
        for k in range(4):
            torch.testing.assert_close(together[:, k], made(x[:, k], memory, mask=real, groups=groups), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(weights[:, k], made.weights(x[:, k], memory, mask=real, groups=groups))


@pytest.mark.parametrize("make", [KVCache, lambda: StaticKVCache(12)], ids=["growing", "reserved"])
def test_step_by_step_with_a_cache_as_all_at_once(make: Callable[[], KVCache], entries: int) -> None:
    made, x, groups, past = layer(), tokens(2, 12), Groups(3, 3), torch.ones(4, 4, dtype=torch.bool).tril()
    cache, mask = make(), past.repeat_interleave(3, 0).repeat_interleave(3, 1)[None]
    expected = made(x, x, mask=mask, groups=groups)
    with torch.no_grad():
        for step in range(4):
            new = x[:, 3 * step : 3 * step + 3]
            out = made(new, new, cache=cache, groups=groups)
            torch.testing.assert_close(out, expected[:, 3 * step : 3 * step + 3], atol=1e-5, rtol=1e-5)


def test_a_group_is_known_by_its_place_alone(entries: int) -> None:
    """Agents in another order, alike at all steps, are the same scene; tokens in another order are not."""
    made, x, groups = layer(), tokens(2, 12), Groups(3, 3)
    grid = torch.arange(12).view(4, 3)
    order = grid[:, torch.tensor([2, 0, 1])].flatten()
    torch.testing.assert_close(
        made(x[:, order], x[:, order], groups=groups), made(x, x, groups=groups)[:, order], atol=1e-5, rtol=1e-5
    )
    order = torch.tensor([1, 0, *range(2, 12)])
    other = made(x[:, order], x[:, order], groups=groups)
    assert (other - made(x, x, groups=groups)[:, order]).abs().max() > 0.01


def test_weights_of_pairs_that_are_hidden_are_nothing() -> None:
    parts, groups = inputs("self"), Groups(4, 4)
    mask = masks(12, 12, groups)["mixed"]
    weights = attention_weights(parts[0], parts[1], mask, agent_aware=AgentAware(*parts[3:], groups))
    assert mask is not None and not weights.masked_select(~mask).any()
    alive = mask.any(-1).expand(weights.shape[:-1])
    torch.testing.assert_close(weights.sum(-1), alive.float())
