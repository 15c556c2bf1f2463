"""Time of DETR's matching, costs included: 64 images, 100 queries, 20 boxes each, 91 classes, on the CPU.

    python tools/bench_matcher.py [--threads 2] [--layers 1] [--repeats 100] [--json FILE]

Three ways in one run, on the same random detections: ours; a plain loop over images; and the published way, which computes
the costs of all queries of the batch with all its boxes and keeps the blocks on the diagonal. All must give the same matches.
Minimum and median of repeated runs are printed: on a machine that does other work, the minimum says what the code costs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from trajformer.heads.detr.boxes import overlap, to_corners
from trajformer.heads.detr.data.batch import BoxTargets
from trajformer.heads.detr.loss import BoxLossConfig, box_cost
from trajformer.losses.matching import match
from trajformer.training.memory import keep_freed_memory

CONFIG = BoxLossConfig()
Pairs = set[tuple[int, int, int]]  # problem, query, box


def draw(layers: int, images: int, queries: int, boxes: int, classes: int) -> tuple[Tensor, Tensor, BoxTargets]:
    """Logits [L, B, Q, C + 1], boxes [L, B, Q, 4] and targets of random images."""
    generator = torch.Generator().manual_seed(0)

    def rectangles(*shape: int) -> Tensor:
        size = 0.05 + 0.3 * torch.rand(*shape, 2, generator=generator)
        return torch.cat([size / 2 + (1 - size) * torch.rand(*shape, 2, generator=generator), size], -1)

    logit = torch.randn(layers, images, queries, classes + 1, generator=generator)
    label = torch.randint(classes, (images, boxes), generator=generator)
    mask = torch.ones(images, boxes, dtype=torch.bool)
    return logit, rectangles(layers, images, queries), BoxTargets(label, rectangles(images, boxes), mask)


def pair_cost(logit: Tensor, box: Tensor, label: Tensor, target: Tensor) -> Tensor:
    """Cost [N, G] of N queries and G boxes, all pairs."""
    cost = -CONFIG.cost_class * logit.softmax(-1)[:, label] + CONFIG.cost_l1 * torch.cdist(box, target, p=1.0)
    return cost - CONFIG.cost_giou * overlap(to_corners(box)[:, None], to_corners(target)[None], generalised=True)


def ours(logit: Tensor, box: Tensor, targets: BoxTargets) -> Pairs | None:
    """All images and layers at once, no pair of different images."""
    pairs = match(box_cost(logit, box, targets, CONFIG), targets.mask)
    return set(zip(*(part.tolist() for part in pairs), strict=True))


def one_by_one(logit: Tensor, box: Tensor, targets: BoxTargets) -> Pairs:
    """A loop over layers and images."""
    pairs: Pairs = set()
    for problem, (scores, found) in enumerate(zip(logit.flatten(0, 1), box.flatten(0, 1), strict=True)):
        image = problem % len(targets.label)
        cost = pair_cost(scores, found, targets.label[image], targets.box[image])
        queries, boxes = linear_sum_assignment(cost.numpy())
        pairs |= {(problem, int(q), int(g)) for q, g in zip(queries, boxes, strict=True)}
    return pairs


def all_pairs(logit: Tensor, box: Tensor, targets: BoxTargets) -> Pairs:
    """The published way: per layer, the costs of all pairs in the batch, of which each image's own are kept."""
    pairs: Pairs = set()
    images, count = targets.label.shape
    for layer, (scores, found) in enumerate(zip(logit, box, strict=True)):
        cost = pair_cost(scores.flatten(0, 1), found.flatten(0, 1), targets.label.flatten(), targets.box.flatten(0, 1))
        blocks = cost.view(images, -1, images * count).split(count, -1)
        for image, block in enumerate(blocks):
            queries, boxes = linear_sum_assignment(block[image].numpy())
            pairs |= {(layer * images + image, int(q), int(g)) for q, g in zip(queries, boxes, strict=True)}
    return pairs


def times_ms(run: Callable[[], object], repeats: int) -> dict[str, float]:
    """Minimum and median of so many runs after three that do not count."""
    times = []
    for index in range(repeats + 3):
        began = time.perf_counter()
        run()
        if index >= 3:
            times.append((time.perf_counter() - began) * 1e3)
    return {"min_ms": min(times), "median_ms": statistics.median(times)}


def main() -> None:
    """Measure the three ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--boxes", type=int, default=20)
    parser.add_argument("--classes", type=int, default=91)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()  # as in training
    given = draw(args.layers, args.images, args.queries, args.boxes, args.classes)
    expected = one_by_one(*given)
    assert ours(*given) == expected and all_pairs(*given) == expected, "the matches differ"
    machine = {"cpu": platform.processor() or platform.machine(), "threads": args.threads, "torch": torch.__version__}
    machine["load"] = round(os.getloadavg()[0], 2)
    print(json.dumps(machine))
    logit, box, targets = given
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "ours": (lambda: match(box_cost(logit, box, targets, CONFIG), targets.mask), args.repeats),
        "ours, costs": (lambda: box_cost(logit, box, targets, CONFIG), args.repeats),
        "a loop over images": (lambda: one_by_one(*given), args.repeats),
        "all pairs of the batch": (lambda: all_pairs(*given), max(args.repeats // 10, 3)),
    }
    rows = {name: times_ms(run, repeats) for name, (run, repeats) in ways.items()}
    for name, row in rows.items():
        print(f"{name:<24} min {row['min_ms']:8.2f} ms   median {row['median_ms']:8.2f} ms")
    print(f"{len(expected)} matches, the same in all three ways")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
