"""Converter for the first stage of the authors' AgentFormer without a map."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import Converted, Options, StateDictReader
from trajformer.errors import CheckpointError
from trajformer.models.agentformer.model import AgentFormer, AgentFormerConfig

HEADS = 8
_SELF, _CROSS = ("self_attention", "self_attn"), ("cross_attention", "multihead_attn")
# Our name of each network, the foreign name, our and the foreign stack of layers, and its attentions.
_NETWORKS = (
    ("context", "context_encoder", "encoder", "tf_encoder", (("attention", "self_attn"),)),
    ("future", "future_encoder", "decoder", "tf_decoder", (_SELF, _CROSS)),
    ("decoder", "future_decoder", "decoder", "tf_decoder", (_SELF, _CROSS)),
)


def agentformer(source: StateDictReader, options: Options, base: AgentFormerConfig = AgentFormerConfig()) -> Converted:
    """Convert a model of hotel, univ or zara2, or with other settings that the shapes do not show (`base`).

    Returns:
        The model config and the state dict.

    Raises:
        CheckpointError: a tensor is missing or has another shape. The caller checks that all tensors were used.
    """
    latent, width = source.peek("future_decoder.p_z_net.weight", 2).shape
    if latent % 2:
        raise CheckpointError(f"{source.name}: 'future_decoder.p_z_net.weight' has {latent} rows, not as many means as variances")
    inner = len(source.peek("context_encoder.tf_encoder.layers.0.linear1.weight", 2))
    heads = options.heads or HEADS
    block = BlockConfig(width, heads, inner, dropout=0.1, attention_dropout=0.1, norm_first=False, agent_aware=True)  # as trained
    for _, foreign, _, stack, _ in _NETWORKS:
        source.peek(f"{foreign}.{stack}.layers.0.norm1.weight", 1)  # at least one layer
    layers = [source.count(f"{foreign}.{stack}.layers.{{}}.norm1.weight") for _, foreign, _, stack, _ in _NETWORKS]
    affine = "future_decoder.out_mlp.affine_layers.{}.weight"
    hidden = tuple(len(source.peek(affine.format(index), 2)) for index in range(source.count(affine)))
    config = replace(base, latent=latent // 2, block=block, layers=(layers[0], layers[1], layers[2]), hidden=hidden)
    for _, foreign, *_ in _NETWORKS:
        key = f"{foreign}.pos_encoder.pe"
        if key in source:  # computed in single precision by that code
            steps = len(source.peek(key, 3))
            source.take_constant(key, sinusoid(torch.arange(steps, dtype=torch.float64), width)[:, None], tolerance=1e-3)
    return config, source.take_model(lambda: AgentFormer(config), _rules(len(hidden)))


agentformer_eth = partial(agentformer, base=AgentFormerConfig(scale_m=2.0))
agentformer_zara1 = partial(agentformer, base=AgentFormerConfig(origin="last"))


def _rules(hidden: int) -> dict[str, str]:
    """Rules for `StateDictReader.take_model`; `hidden` is the number of hidden layers of the output networks."""
    rules = {
        "prior.*": "future_decoder.p_z_net.*",
        f"future.out.{2 * hidden}.*": "future_encoder.q_z_net.*",
        f"decoder.out.{2 * hidden}.*": "future_decoder.out_fc.*",
    }
    for name, foreign, ours, stack, attentions in _NETWORKS:
        rules[f"{name}.tokens.input.*"] = f"{foreign}.input_fc.*"
        rules[f"{name}.tokens.mix.*"] = f"{foreign}.pos_encoder.fc.*"
        rules |= {f"{name}.out.{2 * index}.*": f"{foreign}.out_mlp.affine_layers.{index}.*" for index in range(hidden)}
        here, there = f"{name}.{ours}.layers.{{n}}", f"{foreign}.{stack}.layers.{{n}}"
        for attention, foreign_name in attentions:
            for index, part in enumerate(("query", "key", "value")):
                rules[f"{here}.{attention}.sublayer.{part}.*"] = f"{there}.{foreign_name}.in_proj_*[{index}/3]"
            for index, part in enumerate(("own_query", "own_key")):
                rules[f"{here}.{attention}.sublayer.{part}.*"] = f"{there}.{foreign_name}.in_proj_*_self[{index}/2]"
            rules[f"{here}.{attention}.sublayer.out.*"] = f"{there}.{foreign_name}.out_proj.*"
        for number, part in enumerate((*(attention for attention, _ in attentions), "feedforward"), 1):
            rules[f"{here}.{part}.norm.*"] = f"{there}.norm{number}.*"
        rules[f"{here}.feedforward.sublayer.0.*"] = f"{there}.linear1.*"
        rules[f"{here}.feedforward.sublayer.3.*"] = f"{there}.linear2.*"
    return rules
