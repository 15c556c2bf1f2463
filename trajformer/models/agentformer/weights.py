"""Converter for the first stage of the authors' AgentFormer without a map."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import TORCH_LAYERS, Converted, Options, StateDictReader
from trajformer.errors import CheckpointError
from trajformer.models.agentformer.model import AgentFormer, AgentFormerConfig

HEADS = 8
_DROPOUT = 0.1  # the models were trained with it
_CODE_TOLERANCE = 1e-3  # that code computes time codes in single precision
_PRIOR = "future_decoder.p_z_net.weight"
_AFFINE = "future_decoder.out_mlp.affine_layers.{}.weight"


class _Network(NamedTuple):
    """The names of a network here and in the authors' code, and of its stack of layers there."""

    name: str
    foreign: str
    stack: str


_NETWORKS = (
    _Network("context", "context_encoder", "tf_encoder"),
    _Network("future", "future_encoder", "tf_decoder"),
    _Network("decoder", "future_decoder", "tf_decoder"),
)


def agentformer(
    source: StateDictReader, options: Options, base: AgentFormerConfig = AgentFormerConfig()
) -> Converted:
    """Convert a model of hotel, univ or zara2.

    Settings `base` are for what shapes do not show. Raises CheckpointError: the weights do not fit.
    """
    latent, width = source.peek(_PRIOR, 2).shape
    if latent % 2:
        raise CheckpointError(
            f"{source.name}: '{_PRIOR}' has {latent} rows, not as many means as variances"
        )
    feedforward = len(source.peek("context_encoder.tf_encoder.layers.0.linear1.weight", 2))
    block = BlockConfig(
        width,
        options.heads or HEADS,
        feedforward,
        dropout=_DROPOUT,
        attention_dropout=_DROPOUT,
        norm_first=False,
        agent_aware=True,
    )
    for network in _NETWORKS:  # each has at least one layer
        source.peek(f"{network.foreign}.{network.stack}.layers.0.norm1.weight", 1)
    context_layers, future_layers, decoder_layers = (
        source.count(f"{network.foreign}.{network.stack}.layers.{{}}.norm1.weight")
        for network in _NETWORKS
    )
    num_hidden = source.count(_AFFINE)
    hidden = tuple(len(source.peek(_AFFINE.format(index), 2)) for index in range(num_hidden))
    config = replace(
        base,
        latent=latent // 2,
        block=block,
        layers=(context_layers, future_layers, decoder_layers),
        hidden=hidden,
    )
    for network in _NETWORKS:
        _take_time_codes(source, f"{network.foreign}.pos_encoder.pe", width)
    return config, source.take_model(lambda: AgentFormer(config), _rules(num_hidden))


agentformer_eth = partial(agentformer, base=AgentFormerConfig(scale_m=2.0))
agentformer_zara1 = partial(agentformer, base=AgentFormerConfig(origin="last"))


def _take_time_codes(source: StateDictReader, key: str, width: int) -> None:
    """Check the sinusoidal time codes, which are computed here (CheckpointError: other values)."""
    if key not in source:
        return
    steps = torch.arange(len(source.peek(key, 3)), dtype=torch.float64)
    source.take_constant(key, sinusoid(steps, width)[:, None], tolerance=_CODE_TOLERANCE)


def _rules(num_hidden: int) -> dict[str, str]:
    """Rules for `StateDictReader.take_model`, from patterns of names here to foreign names.

    `num_hidden` is the number of hidden layers of the output networks.
    """
    rules = {
        r"^prior\.": "future_decoder.p_z_net.",
        rf"^future\.out\.{2 * num_hidden}\.": "future_encoder.q_z_net.",
        rf"^decoder\.out\.{2 * num_hidden}\.": "future_decoder.out_fc.",
    }
    for network in _NETWORKS:
        rules[rf"^{network.name}\."] = f"{network.foreign}."
    for index in range(num_hidden):  # activations are between the linear layers
        rules[rf"er\.out\.{2 * index}\."] = f"er.out_mlp.affine_layers.{index}."
    rules |= {
        r"\.tokens\.input\.": ".input_fc.",
        r"\.tokens\.mix\.": ".pos_encoder.fc.",
        r"\.(en|de)coder\.layers": r".tf_\1coder.layers",
    }
    rules |= TORCH_LAYERS
    for index, part in enumerate(("query", "key")):
        rules[rf"attn\.own_{part}\.(.*)"] = rf"attn.in_proj_\1_self[{index}/2]"
    return rules
