"""Weights of the authors' AgentFormer, its first stage without a map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import Options, Source, under
from trajformer.errors import CheckpointError
from trajformer.models.agentformer.model import AgentFormerConfig
from trajformer.recipes.recipe import TrainConfig

if TYPE_CHECKING:
    from trajformer.cli.convert import Converted

_HEADS = 8


def agentformer(source: Source, options: Options) -> Converted:
    """A model of hotel, univ or zara2: a metre is 1, which no shape tells.

    Raises:
        CheckpointError: as `Source.take`; what is left over is for the caller to refuse.
    """
    return _agentformer(source, options, AgentFormerConfig())


def agentformer_eth(source: Source, options: Options) -> Converted:
    """A model of eth: 2 metres are 1.

    Raises:
        CheckpointError: as `agentformer`.
    """
    return _agentformer(source, options, AgentFormerConfig(scale_m=2.0))


def agentformer_zara1(source: Source, options: Options) -> Converted:
    """A model of zara1: a metre is 1, and positions are relative to the mean of the last ones.

    Raises:
        CheckpointError: as `agentformer`.
    """
    return _agentformer(source, options, AgentFormerConfig(origin="last"))


@dataclass(frozen=True)
class _Part:
    """Where one of the three networks is: here and there, and its stack of layers there."""

    ours: str
    theirs: str
    stack: str

    @property
    def attentions(self) -> dict[str, str]:
        """Attentions of a layer."""
        if self.stack == "tf_encoder":
            return {"attention": "self_attn"}
        return {"self_attention": "self_attn", "cross_attention": "multihead_attn"}


_PARTS = (
    _Part("context", "context_encoder", "tf_encoder"),
    _Part("future", "future_encoder", "tf_decoder"),
    _Part("decoder", "future_decoder", "tf_decoder"),
)


def _agentformer(source: Source, options: Options, scene: AgentFormerConfig) -> Converted:
    width, latent = (source.peek("future_decoder.p_z_net.weight", 2).shape[n] for n in (1, 0))
    if latent % 2:
        raise CheckpointError(f"{source.name}: 'future_decoder.p_z_net.weight' has {latent} rows, not as many means as variances")
    inner = len(source.peek("context_encoder.tf_encoder.layers.0.linear1.weight", 2))
    block = BlockConfig(
        width, options.heads or _HEADS, inner, dropout=0.1, attention_dropout=0.1, norm_first=False, agent_aware=True
    )  # as it was trained
    layers = tuple(source.count(f"{part.theirs}.{part.stack}.layers.{{}}.norm1.weight") for part in _PARTS)
    affine = "future_decoder.out_mlp.affine_layers.{}.weight"
    hidden = tuple(len(source.peek(affine.format(n), 2)) for n in range(source.count(affine)))
    config = replace(scene, latent=latent // 2, block=block, layers=(layers[0], layers[1], layers[2]), hidden=hidden)
    weights = under("prior", source.linear("future_decoder.p_z_net", latent, width))
    for part, count, inputs in zip(_PARTS, layers, (4, 4, 2 + latent // 2), strict=True):
        weights |= under(f"{part.ours}.tokens.input", source.linear(f"{part.theirs}.input_fc", width, inputs))
        weights |= under(f"{part.ours}.tokens.mix", source.linear(f"{part.theirs}.pos_encoder.fc", width, 2 * width))
        _take_times(source, f"{part.theirs}.pos_encoder.pe", width)
        stack = "encoder" if part.stack == "tf_encoder" else "decoder"
        for layer in range(count):
            there = f"{part.theirs}.{part.stack}.layers.{layer}"
            weights |= under(f"{part.ours}.{stack}.layers.{layer}", _block(source, there, part.attentions, block))
    for ours, theirs, last, outputs in (
        ("future", "future_encoder", "q_z_net", latent),
        ("decoder", "future_decoder", "out_fc", 2),
    ):
        sizes = (width, *hidden)
        for n, after in enumerate(hidden):
            weights |= under(f"{ours}.out.{2 * n}", source.linear(f"{theirs}.out_mlp.affine_layers.{n}", after, sizes[n]))
        weights |= under(f"{ours}.out.{2 * len(hidden)}", source.linear(f"{theirs}.{last}", outputs, sizes[-1]))
    return TrainConfig(config), weights


def _take_times(source: Source, key: str, width: int) -> None:
    """The table of sinusoids, which follows from its length; theirs is of single precision throughout."""
    if key in source:
        table = source.take(key, len(source.peek(key, 3)), 1, width)
        code = sinusoid(torch.arange(len(table), dtype=torch.float64), width)
        if not torch.allclose(table[:, 0].double(), code, atol=1e-3):
            raise CheckpointError(f"{source.name}: '{key}' is not what follows from the sizes")


def _block(source: Source, there: str, attentions: dict[str, str], block: BlockConfig) -> dict[str, Tensor]:
    """A layer: its attentions, the feed-forward part, and a norm after each, in this order."""
    weights: dict[str, Tensor] = {}
    width, inner = block.width, block.feedforward
    for ours, name in attentions.items():
        place = f"{ours}.sublayer"
        for parts, suffix in ((("query", "key", "value"), ""), (("own_query", "own_key"), "_self")):
            rows = len(parts) * width
            weight = source.take(f"{there}.{name}.in_proj_weight{suffix}", rows, width).chunk(len(parts))
            bias = source.take(f"{there}.{name}.in_proj_bias{suffix}", rows).chunk(len(parts))
            for part, w, b in zip(parts, weight, bias, strict=True):
                weights |= {f"{place}.{part}.weight": w, f"{place}.{part}.bias": b}
        weights |= under(f"{place}.out", source.linear(f"{there}.{name}.out_proj", width, width))
    for n, ours in enumerate((*attentions, "feedforward"), 1):
        weights |= under(f"{ours}.norm", source.norm(f"{there}.norm{n}", width))
    weights |= under("feedforward.sublayer.0", source.linear(f"{there}.linear1", inner, width))
    return weights | under("feedforward.sublayer.3", source.linear(f"{there}.linear2", width, inner))
