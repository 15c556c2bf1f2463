"""Converter for the first stage of the authors' AgentFormer without a map."""

from dataclasses import replace
from functools import partial

import torch

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import TORCH_LAYERS, Converted, Options, StateDictReader
from trajformer.errors import CheckpointError
from trajformer.models.agentformer.model import AgentFormer, AgentFormerConfig

HEADS = 8
# Our name of each network, the foreign name, and the foreign stack of layers.
_NETWORKS = (
    ("context", "context_encoder", "tf_encoder"),
    ("future", "future_encoder", "tf_decoder"),
    ("decoder", "future_decoder", "tf_decoder"),
)


def agentformer(
    source: StateDictReader, options: Options, base: AgentFormerConfig = AgentFormerConfig()
) -> Converted:
    """Convert a model of hotel, univ or zara2, or with settings `base` that shapes do not show (CheckpointError: misfit)."""
    latent, width = source.peek("future_decoder.p_z_net.weight", 2).shape
    if latent % 2:
        raise CheckpointError(
            f"{source.name}: 'future_decoder.p_z_net.weight' has {latent} rows, not as many means as variances"
        )
    inner = len(source.peek("context_encoder.tf_encoder.layers.0.linear1.weight", 2))
    heads = options.heads or HEADS
    block = BlockConfig(
        width, heads, inner, dropout=0.1, attention_dropout=0.1, norm_first=False, agent_aware=True
    )  # as trained
    for _, foreign, stack in _NETWORKS:
        source.peek(f"{foreign}.{stack}.layers.0.norm1.weight", 1)  # at least one layer
    layers = [
        source.count(f"{foreign}.{stack}.layers.{{}}.norm1.weight")
        for _, foreign, stack in _NETWORKS
    ]
    affine = "future_decoder.out_mlp.affine_layers.{}.weight"
    hidden = tuple(
        len(source.peek(affine.format(index), 2)) for index in range(source.count(affine))
    )
    config = replace(
        base,
        latent=latent // 2,
        block=block,
        layers=(layers[0], layers[1], layers[2]),
        hidden=hidden,
    )
    for _, foreign, *_ in _NETWORKS:
        key = f"{foreign}.pos_encoder.pe"
        if key in source:  # computed in single precision by that code
            steps = len(source.peek(key, 3))
            source.take_constant(
                key,
                sinusoid(torch.arange(steps, dtype=torch.float64), width)[:, None],
                tolerance=1e-3,
            )
    return config, source.take_model(lambda: AgentFormer(config), _rules(len(hidden)))


agentformer_eth = partial(agentformer, base=AgentFormerConfig(scale_m=2.0))
agentformer_zara1 = partial(agentformer, base=AgentFormerConfig(origin="last"))


def _rules(hidden: int) -> dict[str, str]:
    """Rules for `StateDictReader.take_model`; `hidden` is the number of hidden layers of the output networks."""
    return {
        r"^prior\.": "future_decoder.p_z_net.",
        rf"^future\.out\.{2 * hidden}\.": "future_encoder.q_z_net.",
        rf"^decoder\.out\.{2 * hidden}\.": "future_decoder.out_fc.",
        **{rf"^{name}\.": f"{foreign}." for name, foreign, *_ in _NETWORKS},
        **{
            rf"er\.out\.{2 * index}\.": f"er.out_mlp.affine_layers.{index}."
            for index in range(hidden)
        },
        r"\.tokens\.input\.": ".input_fc.",
        r"\.tokens\.mix\.": ".pos_encoder.fc.",
        r"\.(en|de)coder\.layers": r".tf_\1coder.layers",
        **TORCH_LAYERS,
        **{
            rf"attn\.own_{part}\.(.*)": rf"attn.in_proj_\1_self[{index}/2]"
            for index, part in enumerate(("query", "key"))
        },
    }
