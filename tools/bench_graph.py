"""Time and memory of graph attention along edges for 50 to 2,000 agents, compared with dense attention.

    python tools/bench_graph.py [--device cpu] [--threads N] [--repeats N] [--json FILE] [--plot FILE]

Agents have random positions in a square with constant density and edges to the nearest neighbors within a radius. Three
variants run forward and backward, each in a separate process: "edges" along the edges; "dense", the same formula over all
pairs with a mask; "fused", scaled dot-product attention with this mask. The first two give the same numbers. `find_ms` is the
time to find the edges. Memory is the increase of the peak memory of the process (of the allocator on a GPU); values below 1 MB
are below the resolution.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from measure import in_new_process, median_ms, new_parser, parse, peak_mb, report
from torch import Tensor
from torch.nn import functional as F

from trajformer.core.attention import MultiHeadAttention
from trajformer.core.graph import Edges, GraphAttention
from trajformer.models.tokens import nearest
from trajformer.training.memory import keep_freed_memory

AGENTS = (50, 100, 200, 500, 1_000, 2_000)
VARIANTS = {
    "edges": "along the edges, at most 16 per agent",
    "dense": "the same formula over all pairs",
    "fused": "fused dot-product attention",
}
WIDTH, HEADS = 128, 4
RADIUS_M, NEIGHBORS, AREA_M2 = 30.0, 16, 150.0  # area per agent: about 19 agents are within the radius


def edges_of(position: Tensor) -> Edges:
    """Edges between agents at positions [N, 2]."""
    valid = torch.ones_like(position[:, 0], dtype=torch.bool)
    index, real = nearest(torch.cdist(position, position), valid, RADIUS_M, NEIGHBORS)
    return Edges.from_neighbors(index[None], real[None], len(position))


def dense(layer: GraphAttention, x: Tensor, mask: Tensor) -> Tensor:
    """Graph attention over all pairs."""
    h = layer.project(x).unflatten(-1, (HEADS, -1)).transpose(0, 1)  # [heads, N, d]
    score = (h * layer.query[:, None]).sum(-1)[..., None] + (h * layer.key[:, None]).sum(-1)[:, None]
    weight = F.leaky_relu(score, layer.slope).masked_fill(~mask, -torch.inf).softmax(-1)
    return (weight @ h).transpose(0, 1).flatten(1)


def build_step(variant: str, agents: int, device: torch.device) -> tuple[Callable[[], Tensor], Tensor]:
    """Forward and backward of a variant, and the positions of the agents."""
    torch.manual_seed(0)
    position = torch.rand(agents, 2, device=device) * (agents * AREA_M2) ** 0.5
    x = torch.randn(agents, WIDTH, device=device, requires_grad=True)
    graph, attention = GraphAttention(WIDTH, HEADS).to(device), MultiHeadAttention(WIDTH, HEADS).to(device)
    edges = edges_of(position)
    columns = 0 if variant == "edges" else agents
    mask = torch.zeros(agents + 1, columns, dtype=torch.bool, device=device)  # the last row is padding
    if variant != "edges":
        mask[edges.query, edges.key] = True
    forward: dict[str, Callable[[], Tensor]] = {
        "edges": lambda: graph(x, x, edges),
        "dense": lambda: dense(graph, x, mask[:-1]),
        "fused": lambda: attention(x, x, mask=mask[:-1]),
    }

    def step() -> Tensor:
        x.grad = None
        out = forward[variant]()
        out.sum().backward()
        return out

    return step, position


def measure(variant: str, repeats: int, kind: str) -> list[dict[str, Any]]:
    """Rows of one variant, fewest agents first, so that each peak is larger than the previous one."""
    device, rows = torch.device(kind), []
    keep_freed_memory()  # as `trajformer train`
    build_step(variant, 10, device)[0]()
    before = peak_mb(kind)
    for agents in AGENTS:
        step, position = build_step(variant, agents, device)
        row: dict[str, Any] = {"variant": variant, "agents": agents, "step_ms": median_ms(step, repeats, kind)}
        row["memory_mb"] = peak_mb(kind) - before
        if variant == "edges":
            row["edges"] = int((edges_of(position).query < agents).sum())
            row["find_ms"] = median_ms(lambda position=position: edges_of(position), repeats, kind)  # type: ignore[misc]
        rows.append(row)
    return rows


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Time and memory over the number of agents."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    table = pd.DataFrame(rows).pivot(index="agents", columns="variant")
    labels = {"step_ms": "forward and backward, ms", "memory_mb": "memory, MB"}
    for ax, (name, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        for variant, text in VARIANTS.items():
            values = table[name, variant]
            ax.plot(values if name == "step_ms" else values[values >= 1.0], marker="o", label=text)
        ax.set(xscale="log", yscale="log", xlabel="agents", ylabel=label, xticks=AGENTS, xticklabels=AGENTS)
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    figure.axes[0].legend(frameon=False)
    figure.savefig(file, dpi=120)


def main() -> None:
    """Measure the variants and print a table."""
    parser = new_parser(__doc__, repeats=15, device=True)
    parser.add_argument("--plot", type=Path)
    args = parse(parser)
    outputs = [build_step(variant, 300, torch.device(args.device))[0]() for variant in ("edges", "dense")]
    assert torch.allclose(*outputs, atol=1e-4), "edges and dense differ"
    parts = (in_new_process(measure, variant, args.repeats, args.device) for variant in VARIANTS)
    rows = report(args, {"Forward and backward": itertools.chain.from_iterable(parts)})
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
