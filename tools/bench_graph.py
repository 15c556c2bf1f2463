"""Time and memory of graph attention along edges for 50 to 2,000 agents, and of dense attention over the same pairs.

    python tools/bench_graph.py [--device cpu] [--threads N] [--repeats N] [--json FILE] [--plot FILE]

Agents stand anywhere in a square that grows with their number; each has edges to those within a radius, the nearest ones, at
most so many. Three ways, forward and backward, in a process of its own each: along the edges; the same formula over all pairs,
masked; and scaled dot-product attention (the fused kernel) with that mask. The first two give the same numbers. Time is the
median of repeated runs after two that do not count; `find ms` is what it takes to find the edges. Memory is by how much the
peak of the process (of the allocator on a GPU) rises above what was there before: below 1 MB it is the resolution of that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))

from bench_model import environment, median_ms
from peak_memory import peak_mb

from trajformer.core.attention import MultiHeadAttention
from trajformer.core.graph import Edges, GraphAttention
from trajformer.models.tokens import nearest
from trajformer.training.memory import keep_freed_memory

AGENTS = (50, 100, 200, 500, 1_000, 2_000)
WAYS = ("edges", "dense", "fused")
WIDTH, HEADS = 128, 4
RADIUS_M, NEIGHBOURS, SPACE_M2 = 30.0, 16, 150.0  # of an agent: about 19 others are within the radius


def edges_of(place: Tensor) -> Edges:
    """Edges between agents at `place` [N, 2]."""
    index, real = nearest(torch.cdist(place, place), torch.ones_like(place[:, 0], dtype=torch.bool), RADIUS_M, NEIGHBOURS)
    return Edges.from_neighbors(index[None], real[None], len(place))


def mask_of(edges: Edges, count: int) -> Tensor:
    """The same as a mask [N, N]."""
    mask = torch.zeros(count + 1, count, dtype=torch.bool, device=edges.key.device)
    mask[edges.query, edges.key] = True
    return mask[:-1]


def dense(layer: GraphAttention, x: Tensor, mask: Tensor) -> Tensor:
    """The formula of graph attention over all pairs."""
    h = layer.project(x).unflatten(-1, (HEADS, -1)).transpose(0, 1)  # [heads, N, d]
    score = (h * layer.query[:, None]).sum(-1)[..., None] + (h * layer.key[:, None]).sum(-1)[:, None]
    weight = F.leaky_relu(score, layer.slope).masked_fill(~mask, -torch.inf).softmax(-1)
    return (weight @ h).transpose(0, 1).flatten(1)


def step_of(way: str, agents: int, device: torch.device) -> tuple[Callable[[], Tensor], Tensor]:
    """Forward and backward of so many agents, and their places."""
    torch.manual_seed(0)
    place = torch.rand(agents, 2, device=device) * (agents * SPACE_M2) ** 0.5
    x = torch.randn(agents, WIDTH, device=device, requires_grad=True)
    graph, attention = GraphAttention(WIDTH, HEADS).to(device), MultiHeadAttention(WIDTH, HEADS).to(device)
    edges = edges_of(place)
    mask = mask_of(edges, agents) if way != "edges" else torch.empty(0)
    ways: dict[str, Callable[[], Tensor]] = {
        "edges": lambda: graph(x, x, edges),
        "dense": lambda: dense(graph, x, mask),
        "fused": lambda: attention(x, x, mask=mask),
    }

    def step() -> Tensor:
        x.grad = None
        out = ways[way]()
        out.sum().backward()
        return out

    return step, place


def child(args: argparse.Namespace) -> None:
    """Rows of one way, fewest agents first: what a peak was before is then less than what it is."""
    device, rows = torch.device(args.device), []
    keep_freed_memory()  # as `trajformer train` does
    step_of(args.only, 10, device)[0]()
    before = peak_mb(device)
    for agents in AGENTS:
        step, place = step_of(args.only, agents, device)
        row: dict[str, Any] = {"way": args.only, "agents": agents, "step_ms": median_ms(step, args.repeats, device)}
        row["memory_mb"] = peak_mb(device) - before
        if args.only == "edges":
            row["edges"] = int((edges_of(place).query < agents).sum())
            row["find_ms"] = median_ms(lambda place=place: edges_of(place), args.repeats, device)  # type: ignore[misc]
        rows.append(row)
    print(json.dumps(rows))


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Time and memory over the number of agents."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = {"edges": f"along edges, at most {NEIGHBOURS} each", "dense": "the same over all pairs", "fused": "fused dot-product"}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, field, label in zip(axes, ("step_ms", "memory_mb"), ("forward and backward, ms", "memory, MB"), strict=True):
        for way in WAYS:
            own = [row for row in rows if row["way"] == way and (field == "step_ms" or row[field] >= 1.0)]
            axis.plot([row["agents"] for row in own], [row[field] for row in own], marker="o", label=names[way])
        axis.set(xscale="log", yscale="log", xlabel="agents", ylabel=label, xticks=AGENTS, xticklabels=AGENTS)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(file, dpi=120)


def main() -> None:
    """Measure the three ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.only:
        return child(args)
    same = [step_of(way, 300, torch.device(args.device))[0]() for way in ("edges", "dense")]
    assert torch.allclose(*same, atol=1e-4), "edges and pairs differ"
    machine = environment(args.device) | {"load": os.getloadavg()}
    print(json.dumps(machine))
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", way]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows += json.loads(done.stdout.splitlines()[-1])
    found = {(row["way"], row["agents"]): row for row in rows}
    print(" " * 23 + "".join(f"{way:>22}" for way in WAYS))
    print("agents   edges  find ms" + "         ms         MB" * len(WAYS))
    for agents in AGENTS:
        own = found["edges", agents]
        cells = "".join(f"{found[way, agents]['step_ms']:>11.2f}{found[way, agents]['memory_mb']:>11.1f}" for way in WAYS)
        print(f"{agents:>6}{own['edges']:>8}{own['find_ms']:>9.2f}{cells}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
