"""Time of DETR's matching with its costs: 64 images, 100 queries, 20 boxes per image, 91 classes, on the CPU.

    python tools/bench_matcher.py [--threads 2] [--layers 1] [--repeats 100] [--json FILE]

Three implementations run on the same random detections and give the same matches: "batched", the one of this project; "loop
over images"; and "all pairs", the published implementation, which computes the costs of all queries with all boxes of the
batch and keeps the diagonal blocks. Minimum and median of repeated runs are printed: on a busy machine, the minimum is the
better estimate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from measure import new_parser, parse, report, times_s
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from trajformer.heads.detr.boxes import iou, to_corners
from trajformer.heads.detr.data import BoxTargets
from trajformer.heads.detr.loss import BoxLossConfig, box_cost
from trajformer.losses.matching import match
from trajformer.training.memory import keep_freed_memory

CONFIG = BoxLossConfig()
Pairs = set[tuple[int, int, int]]  # problem, query, box


def random_detections(layers: int, images: int, queries: int, boxes: int, classes: int) -> tuple[Tensor, Tensor, BoxTargets]:
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
    return cost - CONFIG.cost_giou * iou(to_corners(box)[:, None], to_corners(target)[None], generalized=True)


def assigned(problem: int, cost: Tensor) -> Iterator[tuple[int, int, int]]:
    """Matches of one image from its cost [Q, G]."""
    for query, box in zip(*linear_sum_assignment(cost.numpy()), strict=True):
        yield problem, int(query), int(box)


def batched(logit: Tensor, box: Tensor, targets: BoxTargets) -> tuple[Tensor, ...]:
    """All images and layers at once, without pairs of different images."""
    return tuple(match(box_cost(logit, box, targets, CONFIG), targets.mask))


def loop_over_images(logit: Tensor, box: Tensor, targets: BoxTargets) -> Pairs:
    """One assignment problem per layer and image."""
    pairs: Pairs = set()
    for problem, (scores, boxes) in enumerate(zip(logit.flatten(0, 1), box.flatten(0, 1), strict=True)):
        image = problem % len(targets.label)
        pairs |= set(assigned(problem, pair_cost(scores, boxes, targets.label[image], targets.box[image])))
    return pairs


def all_pairs(logit: Tensor, box: Tensor, targets: BoxTargets) -> Pairs:
    """The published implementation: costs of all pairs in the batch, then the block of each image."""
    pairs: Pairs = set()
    images, count = targets.label.shape
    for layer, (scores, boxes) in enumerate(zip(logit, box, strict=True)):
        cost = pair_cost(scores.flatten(0, 1), boxes.flatten(0, 1), targets.label.flatten(), targets.box.flatten(0, 1))
        for image, block in enumerate(cost.view(images, -1, images * count).split(count, -1)):
            pairs |= set(assigned(layer * images + image, block[image]))
    return pairs


def main() -> None:
    """Measure the implementations."""
    parser = new_parser(__doc__, repeats=100)
    parser.set_defaults(threads=2)
    for name, default in {"images": 64, "queries": 100, "boxes": 20, "classes": 91, "layers": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parse(parser)
    keep_freed_memory()  # as in training
    detections = random_detections(args.layers, args.images, args.queries, args.boxes, args.classes)
    expected = loop_over_images(*detections)
    pairs = set(zip(*(part.tolist() for part in batched(*detections)), strict=True))
    assert pairs == expected == all_pairs(*detections), "the matches differ"
    times = times_s(
        {
            "batched": lambda: batched(*detections),
            "batched, costs only": lambda: box_cost(*detections, CONFIG),
            "loop over images": lambda: loop_over_images(*detections),
        },
        args.repeats,
    )
    times |= times_s({"all pairs of the batch": lambda: all_pairs(*detections)}, max(args.repeats // 10, 3))
    rows = [{"": name, "min_ms": t[:, 0].min() * 1e3, "median_ms": np.median(t[:, 0]) * 1e3} for name, t in times.items()]
    report(args, {f"{len(expected)} matches, equal in all implementations": rows})


if __name__ == "__main__":
    main()
