"""Attention along edges: its formula, another implementation, lists of neighbours, and what memory grows with."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trajformer.core.graph import Edges, GraphAttention

WIDTH, HEADS = 12, 3


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def build() -> GraphAttention:
    torch.manual_seed(0)
    return GraphAttention(WIDTH, HEADS)


def dense(layer: GraphAttention, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """The formula over all pairs [Q, S]."""
    q, k = (layer.project(x).unflatten(-1, (HEADS, -1)).transpose(0, 1) for x in (query, key))
    a = torch.cat([layer.query, layer.key], -1)
    pairs = torch.cat([q[:, :, None].expand(-1, -1, len(key), -1), k[:, None].expand(-1, len(query), -1, -1)], -1)
    score = F.leaky_relu((pairs * a[:, None, None]).sum(-1), 0.2)
    weight = score.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()
    return (weight @ k).transpose(0, 1).flatten(1)


def edges_of(mask: Tensor) -> Edges:
    return Edges(*mask.nonzero().T)


def gradients(layer: GraphAttention, out: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((out * draw(*out.shape, seed=9)).sum(), [*layer.parameters(), *inputs]))


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_along_the_edges_of_a_mask_it_is_the_formula_over_that_mask(share: float) -> None:
    layer, query, key = build(), draw(7, WIDTH).requires_grad_(), draw(9, WIDTH, seed=1).requires_grad_()
    mask = torch.rand(7, 9, generator=torch.Generator().manual_seed(2)) <= share
    if share < 1:
        mask[3] = False
    out, expected = layer(query, key, edges_of(mask)), dense(layer, query, key, mask)
    torch.testing.assert_close(out, expected)
    for ours, theirs in zip(gradients(layer, out, query, key), gradients(layer, expected, query, key), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_it_is_the_graph_attention_of_torch_geometric() -> None:
    gat = pytest.importorskip("torch_geometric.nn").GATConv
    layer, query, key = build(), draw(7, WIDTH), draw(9, WIDTH, seed=1)
    theirs = gat(WIDTH, WIDTH // HEADS, HEADS, add_self_loops=False, bias=False)
    theirs.load_state_dict({"lin.weight": layer.project.weight, "att_src": layer.key[None], "att_dst": layer.query[None]})
    edges = edges_of(torch.rand(7, 9, generator=torch.Generator().manual_seed(2)) < 0.4)
    torch.testing.assert_close(layer(query, key, edges), theirs((key, query), torch.stack([edges.key, edges.query])))
    own = edges_of(torch.rand(9, 9, generator=torch.Generator().manual_seed(3)) < 0.4)
    torch.testing.assert_close(layer(key, key, own), theirs(key, torch.stack([own.key, own.query])))


def test_the_order_of_edges_does_not_matter() -> None:
    layer, query, key = build(), draw(7, WIDTH), draw(9, WIDTH, seed=1)
    edges = edges_of(draw(7, 9, seed=2) > 0)
    position = draw(len(edges.query), WIDTH, seed=3)
    order = torch.randperm(len(position), generator=torch.Generator().manual_seed(4))
    mixed = layer(query, key, Edges(edges.query[order], edges.key[order]), position[order])
    torch.testing.assert_close(mixed, layer(query, key, edges, position))


def test_a_position_is_part_of_the_key_that_its_query_sees() -> None:
    layer, query, key = build(), draw(7, WIDTH), draw(9, WIDTH, seed=1)
    edges = edges_of(draw(7, 9, seed=2) > 0)
    position = draw(len(edges.query), WIDTH, seed=3)
    seen = Edges(edges.query, torch.arange(len(position)))
    torch.testing.assert_close(layer(query, key, edges, position), layer(query, key[edges.key] + position, seen))


@pytest.mark.parametrize("alone", [[2], [0, 6], range(7)])
def test_who_has_no_edge_gets_zeros_and_gradients_are_finite(alone: list[int]) -> None:
    layer, query, key = build(), draw(7, WIDTH).requires_grad_(), draw(9, WIDTH, seed=1).requires_grad_()
    mask = torch.ones(7, 9, dtype=torch.bool)
    mask[list(alone)] = False
    out = layer(query, key, edges_of(mask))
    assert torch.equal(out[list(alone)], torch.zeros(len(alone), WIDTH)) and out.shape == (7, WIDTH)
    assert (out != 0).any(-1).sum() == 7 - len(alone)
    found = gradients(layer, out, query, key)
    assert all(gradient.isfinite().all() for gradient in found) and not found[-2][list(alone)].any()


def test_edges_of_nobody_count_nowhere() -> None:
    layer, query, key = build(), draw(7, WIDTH), draw(9, WIDTH, seed=1)
    edges = edges_of(draw(7, 9, seed=2) > 0)
    position = draw(len(edges.query), WIDTH, seed=3)
    more = Edges(torch.cat([edges.query, torch.full((5,), 7)]), torch.cat([edges.key, torch.arange(5)]))
    extra = (1e4 * draw(5, WIDTH, seed=4)).requires_grad_()
    out = layer(query, key, more, torch.cat([position, extra]))
    torch.testing.assert_close(out, layer(query, key, edges, position))
    assert not torch.autograd.grad(out.sum(), extra)[0].any()


def test_scores_of_any_size_give_weights() -> None:
    layer, query, key = build(), 1e5 * draw(7, WIDTH), 1e5 * draw(9, WIDTH, seed=1)
    mask = draw(7, 9, seed=2) > 0
    out = layer(query, key, edges_of(mask))
    torch.testing.assert_close(out, dense(layer, query, key, mask))
    assert all(gradient.isfinite().all() for gradient in gradients(layer, out))


def test_bf16_is_close() -> None:
    layer, query, key, edges = build(), draw(7, WIDTH), draw(9, WIDTH, seed=1), edges_of(draw(7, 9, seed=2) > 0)
    with torch.autocast("cpu", torch.bfloat16):
        rough = layer(query, key, edges)
    assert rough.dtype == torch.float32 and (rough - layer(query, key, edges)).abs().max() < 0.05


def test_lists_of_neighbours_by_hand() -> None:
    key = torch.tensor([[[2, 0], [1, 1], [0, 2]], [[1, 2], [0, 1], [2, 2]]])  # two graphs of three queries and three keys
    real = torch.tensor([[[1, 0], [1, 0], [1, 1]], [[0, 0], [1, 1], [1, 0]]], dtype=torch.bool)
    edges = Edges.from_neighbors(key, real, 3)
    assert edges.query.tolist() == [0, 6, 1, 6, 2, 2, 6, 6, 4, 4, 5, 6]
    assert edges.key.tolist() == [2, 0, 1, 1, 0, 2, 4, 5, 3, 4, 5, 5]
    both = edges.concat(Edges(torch.tensor([5]), torch.tensor([1])), 6)
    assert both.query[-1] == 5 and both.key[-1] == 7 and both.key[:12].tolist() == edges.key.tolist()
    layer, query, value = build(), draw(6, WIDTH), draw(6, WIDTH, seed=1)
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[edges.query[edges.query < 6], edges.key[edges.query < 6]] = True
    torch.testing.assert_close(layer(query, value, edges), dense(layer, query, value, mask))


def kept(nodes: int, edges: int) -> int:
    """Bytes that are kept for the gradient, of a layer with so many nodes and edges from each."""
    layer, x = build(), draw(nodes, WIDTH).requires_grad_()
    key = (torch.arange(nodes)[:, None] + torch.arange(edges)) % nodes
    lists = Edges.from_neighbors(key[None], torch.ones_like(key[None], dtype=torch.bool), nodes)
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x, x, lists)
    return sum(sizes.values())


def test_memory_grows_with_edges_and_not_with_pairs() -> None:
    assert kept(2_000, 8) / kept(500, 8) == pytest.approx(4.0, rel=0.05)
    assert kept(1_000, 32) / kept(1_000, 8) == pytest.approx(4.0, rel=0.25)
    assert kept(2_000, 8) < 4 * 2_000**2  # fewer bytes than one number for each pair


def test_no_value_is_read_where_edges_are_made_or_used() -> None:
    """Tensors without values: whatever asked the device how many edges there are would fail."""
    key, real = torch.zeros(2, 5, 3, dtype=torch.int64, device="meta"), torch.ones(2, 5, 3, dtype=torch.bool, device="meta")
    edges, x = Edges.from_neighbors(key, real, 7), torch.zeros(14, WIDTH, device="meta")
    assert build().to("meta")(x[:10], x, edges, torch.zeros(30, WIDTH, device="meta")).shape == (10, WIDTH)


def test_torch_geometric_is_imported_by_who_uses_it_alone() -> None:
    """It takes seconds, which no command and no other model should wait for."""
    users = []
    for file in sorted((Path(__file__).parents[2] / "trajformer").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import) and "torch_geometric" in ast.unparse(node):
                assert node not in tree.body, file
                users.append(file.name)
    assert users == ["attention.py", "graph.py"]


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match="heads 5 does not divide width 12"):
        GraphAttention(WIDTH, 5)
