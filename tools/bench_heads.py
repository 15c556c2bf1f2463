"""Compare the reference heads with PyTorch's transformer of the same size, and decoding with and without a cache.

    python tools/bench_heads.py [--device cuda] [--precision bf16] [--repeats 9] [--json FILE]

Training rows time forward and backward passes of one batch without dropout. Both models alternate and medians are reported.
Decoding rows extend 16 hypotheses to 60 tokens. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import torch
from measure import medians_ms, new_parser, parse, report
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.heads.translation.model import Hypotheses, Transformer, TransformerConfig


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


def main() -> None:
    """Measure and print."""
    parser = new_parser(__doc__, repeats=9, device=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    args = parse(parser)
    torch.manual_seed(0)
    report(args, {"Training": training(args), "Decoding": decoding(args)}, precision=args.precision)


if __name__ == "__main__":
    main()
