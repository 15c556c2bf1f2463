"""Compare the reference heads with PyTorch's transformer of the same size, and decoding with and without a cache.

    python tools/bench_heads.py [--device cuda] [--precision bf16] [--repeats 9] [--json FILE]

Training rows time forward and backward passes of one batch without dropout. Both models alternate and medians are reported.
Decoding rows extend 16 hypotheses to 60 tokens. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
from measure import environment, medians_s, new_parser, write_json
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.heads.translation.decoding import Hypotheses
from trajformer.heads.translation.model import Transformer, TransformerConfig

Step = Callable[[], None]


def training(model: nn.Module, reference: nn.Module, inputs: tuple[Tensor, ...], args: argparse.Namespace) -> dict[str, Step]:
    """A training step of two modules that map the same tokens [B, L, D] to [B, L, D]."""

    def step(module: nn.Module) -> Step:
        def run() -> None:
            with torch.autocast(inputs[0].device.type, torch.bfloat16, enabled=args.precision == "bf16"):
                out = module(*inputs)
            out = out[-1] if isinstance(out, list) else out
            out.float().square().mean().backward()
            module.zero_grad()

        return run

    return {"trajformer": step(model.train()), "torch.nn": step(reference.train())}


class EncoderDecoder(nn.Module):
    """Encoder and decoder of the core."""

    def __init__(self, block: BlockConfig, layers: int) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(block, layers, final_norm=True), Decoder(block, layers, final_norm=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The decoder's features."""
        return self.decoder(target, self.encoder(source))[-1]


def heads(args: argparse.Namespace, device: torch.device) -> dict[str, dict[str, Step]]:
    """Training steps of the transformer of each head."""
    rows: dict[str, dict[str, Step]] = {}
    for name, width, count, inner, layers, batch, source, target in (
        ("translation: 64 pairs of 20 tokens, D 256, 3 + 3", 256, 4, 512, 3, 64, 20, 20),
        ("DETR: 2 images of 850 positions, 100 queries, D 256, 6 + 6", 256, 8, 2048, 6, 2, 850, 100),
    ):
        block = BlockConfig(width, count, inner, dropout=0.0, norm_first=False)
        reference = nn.Transformer(width, count, layers, layers, inner, 0.0, batch_first=True).to(device)
        inputs = torch.randn(batch, source, width, device=device), torch.randn(batch, target, width, device=device)
        rows[name] = training(EncoderDecoder(block, layers).to(device), reference, inputs, args)
    block = BlockConfig(192, 3, 768, dropout=0.0, norm_first=True, activation="gelu")
    layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True)
    reference = nn.TransformerEncoder(layer, 12, nn.LayerNorm(192), enable_nested_tensor=False).to(device)
    patches = (torch.randn(8, 197, 192, device=device),)
    rows["ViT: 8 images of 197 patches, D 192, 12 layers"] = training(Encoder(block, 12).to(device), reference, patches, args)
    return rows


def decoding(device: torch.device) -> dict[str, Step]:
    """16 hypotheses of 60 tokens, with a cache and without."""
    block = BlockConfig(256, 4, 512, norm_first=False)
    model = Transformer(TransformerConfig(6000, 6000, block, (3, 3))).to(device).eval()
    source = torch.randint(4, 6000, (16, 20), device=device)

    def grow(cached: bool) -> Step:
        @torch.inference_mode()
        def run() -> None:
            steps = Hypotheses(model, source, cached=cached)
            prefix = torch.ones(16, 1, dtype=torch.int64, device=device)
            for _ in range(60):
                prefix = torch.cat([prefix, steps.step(prefix).argmax(-1, keepdim=True)], 1)

        return run

    return {"cached": grow(True), "whole prefix": grow(False)}


def main() -> None:
    """Measure and print."""
    parser = new_parser(__doc__, repeats=9, device=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    machine = environment(args.device) | {"precision": args.precision}
    print(json.dumps(machine))
    rows = heads(args, device) | {"decoding: 16 sentences, 60 tokens, D 256, 3 + 3": decoding(device)}
    figures = {}
    for name, steps in rows.items():
        figures[name] = medians_s(steps, args.repeats, args.device)
        (name_a, seconds_a), (name_b, seconds_b) = figures[name].items()
        times = f"{name_a} {seconds_a * 1e3:8.1f} ms   {name_b} {seconds_b * 1e3:8.1f} ms"
        print(f"{name:<58} {times}   {seconds_b / seconds_a:5.2f} times", flush=True)
    if args.json:
        write_json(args.json, figures, machine)


if __name__ == "__main__":
    main()
