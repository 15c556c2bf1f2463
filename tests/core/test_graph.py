"""Graph attention: the formula, agreement with torch-geometric, neighbor lists, memory."""

import pytest
import torch
from support.tensors import draw, draw_mask
from torch import Tensor
from torch.nn import functional as F

from trajformer.core.graph import Edges, GraphAttention

WIDTH, HEADS = 12, 3
MASK = draw_mask(7, 9, share=0.5, seed=2)


@pytest.fixture
def layer() -> GraphAttention:
    torch.manual_seed(0)
    return GraphAttention(WIDTH, HEADS)


def inputs() -> tuple[Tensor, Tensor]:
    """Queries [7, D] and keys [9, D]."""
    return draw(7, WIDTH).requires_grad_(), draw(9, WIDTH, seed=1).requires_grad_()


def dense(layer: GraphAttention, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """The formula over all pairs [Q, S]."""
    q = layer.project(query).unflatten(-1, (HEADS, -1)).transpose(0, 1)
    k = layer.project(key).unflatten(-1, (HEADS, -1)).transpose(0, 1)
    a = torch.cat([layer.query, layer.key], -1)
    all_q = q[:, :, None].expand(-1, -1, len(key), -1)
    all_k = k[:, None].expand(-1, len(query), -1, -1)
    pairs = torch.cat([all_q, all_k], -1)
    score = F.leaky_relu((pairs * a[:, None, None]).sum(-1), 0.2)
    weight = score.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()
    return (weight @ k).transpose(0, 1).flatten(1)


def edges_of(mask: Tensor) -> Edges:
    return Edges(*mask.nonzero().T)


def gradients(layer: GraphAttention, out: Tensor, *tensors: Tensor) -> list[Tensor]:
    loss = (out * draw(*out.shape, seed=9)).sum()
    return list(torch.autograd.grad(loss, [*layer.parameters(), *tensors]))


@pytest.mark.parametrize("isolated", [[], [3], [0, 6], range(7)])
def test_graph_attention_equals_the_formula(layer: GraphAttention, isolated: list[int]) -> None:
    query, key = inputs()
    mask = MASK.clone()
    mask[list(isolated)] = False
    out = layer(query, key, edges_of(mask))
    expected = dense(layer, query, key, mask)
    torch.testing.assert_close(out, expected)
    assert torch.equal(out[list(isolated)], torch.zeros(len(isolated), WIDTH))
    actual = gradients(layer, out, query, key)
    assert not actual[-2][list(isolated)].any()
    if len(isolated) < 7:
        for a, b in zip(actual, gradients(layer, expected, query, key), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert all(gradient.isfinite().all() for gradient in actual)


def test_padding_edges_are_ignored(layer: GraphAttention) -> None:
    query, key = inputs()
    edges = edges_of(MASK)
    position = draw(len(edges.query), WIDTH, seed=3)
    padded_query = torch.cat([edges.query, torch.full((5,), 7)])
    padded_key = torch.cat([edges.key, torch.arange(5)])
    padded = Edges(padded_query, padded_key)
    padding = (1e4 * draw(5, WIDTH, seed=4)).requires_grad_()
    out = layer(query, key, padded, torch.cat([position, padding]))
    torch.testing.assert_close(out, layer(query, key, edges, position))
    assert not torch.autograd.grad(out.sum(), padding)[0].any()


def saved_bytes(layer: GraphAttention, nodes: int, edges: int) -> int:
    """Bytes saved for the backward pass, with this number of nodes and edges per node."""
    x = draw(nodes, WIDTH).requires_grad_()
    key = (torch.arange(nodes)[:, None] + torch.arange(edges)) % nodes
    lists = Edges.from_neighbors(key[None], torch.ones_like(key[None], dtype=torch.bool), nodes)
    sizes: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        layer(x, x, lists)
    return sum(sizes.values())


def test_memory_is_linear_in_the_number_of_edges(layer: GraphAttention) -> None:
    assert saved_bytes(layer, 2_000, 8) / saved_bytes(layer, 500, 8) == pytest.approx(4.0, rel=0.05)
    assert saved_bytes(layer, 1_000, 32) / saved_bytes(layer, 1_000, 8) == pytest.approx(
        4.0, rel=0.25
    )
    assert saved_bytes(layer, 2_000, 8) < 4 * 2_000**2  # less than one float32 for each pair


def test_graph_attention_equals_torch_geometric(layer: GraphAttention) -> None:
    gat = pytest.importorskip("torch_geometric.nn").GATConv(
        WIDTH, WIDTH // HEADS, HEADS, add_self_loops=False, bias=False
    )
    weights = {
        "lin.weight": layer.project.weight,
        "att_src": layer.key[None],
        "att_dst": layer.query[None],
    }
    gat.load_state_dict(weights)
    query, key = inputs()
    edges = edges_of(MASK)
    expected = gat((key, query), torch.stack([edges.key, edges.query]))
    torch.testing.assert_close(layer(query, key, edges), expected)
