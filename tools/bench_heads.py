"""Compare the reference heads with PyTorch's transformer of the same size, decoding with and without a cache, and matchings.

    python tools/bench_heads.py [--device cuda] [--precision bf16] [--repeats 9] [--threads N] [--json FILE]

Training rows time forward and backward passes of one batch without dropout. Both models alternate and medians are reported.
Decoding rows extend 16 hypotheses to 60 tokens. Matching rows, on the CPU, time DETR's matching with its costs. Its three
implementations give the same matches: "batched", the one of this project; "loop over images"; and "all pairs", the published
one, which computes the costs of all queries with all boxes of the batch and keeps the diagonal blocks. Run it on an idle machine.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from measure import medians_ms, new_parser, parse, report
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.heads.detr.data import BoxTargets, iou, to_corners
from trajformer.heads.detr.model import BoxLossConfig, box_cost
from trajformer.heads.translation import Hypotheses, Transformer, TransformerConfig
from trajformer.losses.matching import match
from trajformer.training.memory import keep_freed_memory


class EncoderDecoder(nn.Module):
    """Encoder and decoder of the core."""

    def __init__(self, block: BlockConfig, layers: int) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(block, layers, final_norm=True), Decoder(block, layers, final_norm=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The decoder's features."""
        return self.decoder(target, self.encoder(source))[-1]


def heads() -> Iterator[tuple[str, nn.Module, nn.Module, list[Tensor]]]:
    """The transformer of each head, PyTorch's module of the same size, and input tokens [B, L, D] of both."""
    for name, width, count, inner, layers, batch, lengths in (
        ("translation: 64 pairs of 20 tokens, D 256, 3 + 3", 256, 4, 512, 3, 64, (20, 20)),
        ("DETR: 2 images of 850 positions, 100 queries, D 256, 6 + 6", 256, 8, 2048, 6, 2, (850, 100)),
    ):
        block = BlockConfig(width, count, inner, dropout=0.0, norm_first=False)
        reference: nn.Module = nn.Transformer(width, count, layers, layers, inner, 0.0, batch_first=True)
        yield name, EncoderDecoder(block, layers), reference, [torch.randn(batch, length, width) for length in lengths]
    block = BlockConfig(192, 3, 768, dropout=0.0, norm_first=True, activation="gelu")
    layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True)
    reference = nn.TransformerEncoder(layer, 12, nn.LayerNorm(192), enable_nested_tensor=False)
    yield "ViT: 8 images of 197 patches, D 192, 12 layers", Encoder(block, 12), reference, [torch.randn(8, 197, 192)]


def training(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """A training step of each head and of its reference."""
    for name, model, reference, cpu_inputs in heads():
        inputs = [tokens.to(args.device) for tokens in cpu_inputs]

        def step(module: nn.Module, inputs: list[Tensor] = inputs) -> None:
            with torch.autocast(inputs[0].device.type, torch.bfloat16, enabled=args.precision == "bf16"):
                out = module(*inputs)
            out = out[-1] if isinstance(out, list) else out
            out.float().square().mean().backward()
            module.zero_grad()

        modules = {"trajformer": model.to(args.device).train(), "torch.nn": reference.to(args.device).train()}
        runs: dict[str, Callable[[], None]] = {key: lambda module=module: step(module) for key, module in modules.items()}
        times = medians_ms(runs, args.repeats, args.device)
        yield {"training step, ms": name, **times, "times faster": times["torch.nn"] / times["trajformer"]}


def decoding(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """16 hypotheses of 60 tokens, with a cache and without."""
    block = BlockConfig(256, 4, 512, norm_first=False)
    model = Transformer(TransformerConfig(6000, 6000, block, (3, 3))).to(args.device).eval()
    source = torch.randint(4, 6000, (16, 20), device=args.device)

    @torch.inference_mode()
    def decode(cached: bool) -> None:
        steps = Hypotheses(model, source, cached=cached)
        prefix = torch.ones(16, 1, dtype=torch.int64, device=args.device)
        for _ in range(60):
            prefix = torch.cat([prefix, steps.step(prefix).argmax(-1, keepdim=True)], 1)

    runs = {"cached": lambda: decode(True), "whole prefix": lambda: decode(False)}
    times = medians_ms(runs, args.repeats, args.device)
    name = "16 sentences, 60 tokens, D 256, 3 + 3"
    yield {"decoding, ms": name, **times, "times faster": times["whole prefix"] / times["cached"]}


def matching(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """The matches of 64 images with 100 queries and 20 boxes each, 91 classes."""
    keep_freed_memory()  # as in training
    images, queries, boxes, classes, config = 64, 100, 20, 91, BoxLossConfig()

    def rectangles(*shape: int) -> Tensor:
        size = 0.05 + 0.3 * torch.rand(*shape, 2)
        return torch.cat([size / 2 + (1 - size) * torch.rand(*shape, 2), size], -1)

    logit, box = torch.randn(images, queries, classes + 1), rectangles(images, queries)
    label, target = torch.randint(classes, (images, boxes)), rectangles(images, boxes)
    targets = BoxTargets(label, target, torch.ones(images, boxes, dtype=torch.bool))

    def pair_cost(logit: Tensor, box: Tensor, label: Tensor, target: Tensor) -> Tensor:
        cost = -config.cost_class * logit.softmax(-1)[:, label] + config.cost_l1 * torch.cdist(box, target, p=1.0)
        return cost - config.cost_giou * iou(to_corners(box)[:, None], to_corners(target)[None], generalized=True)

    def pairs(costs: Iterable[Tensor]) -> set[tuple[int, ...]]:
        solved = enumerate(linear_sum_assignment(cost.numpy()) for cost in costs)
        return {(image, query, box) for image, found in solved for query, box in np.stack(found, 1).tolist()}

    def all_pairs() -> set[tuple[int, ...]]:
        cost = pair_cost(logit.flatten(0, 1), box.flatten(0, 1), label.flatten(), target.flatten(0, 1))
        blocks = cost.view(images, queries, images * boxes).split(boxes, -1)
        return pairs(block[image] for image, block in enumerate(blocks))

    runs: dict[str, Callable[[], Any]] = {
        "batched": lambda: match(box_cost(logit[None], box[None], targets, config), targets.mask),
        "batched, costs only": lambda: box_cost(logit[None], box[None], targets, config),
        "loop over images": lambda: pairs(map(pair_cost, logit, box, label, target)),
        "all pairs of the batch": all_pairs,
    }
    expected = runs["loop over images"]()
    batched = set(zip(*(part.tolist() for part in runs["batched"]()), strict=True))
    assert batched == expected == all_pairs(), "the matches differ"
    yield {"matching, ms": f"{len(expected)} equal matches", **medians_ms(runs, args.repeats)}


def main() -> None:
    """Measure and print."""
    parser = new_parser(__doc__, repeats=9, device=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    args = parse(parser)
    torch.manual_seed(0)
    report(args, {"Training": training(args), "Decoding": decoding(args), "Matching": matching(args)}, precision=args.precision)


if __name__ == "__main__":
    main()
