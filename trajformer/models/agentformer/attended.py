"""The tokens of AgentFormer's attention layers (see `models/attended.py`)."""

import torch
from torch import Tensor

from trajformer.core.blocks import masked_mean
from trajformer.data.batch import Observation
from trajformer.models.agentformer.networks import ContextEncoder, FutureDecoder
from trajformer.models.attended import TargetAttention, to_agents_and_pieces
from trajformer.models.tokens import group_steps


def attention_layers(
    observation: Observation, lanes: Tensor, context: ContextEncoder, decoder: FutureDecoder
) -> list[TargetAttention]:
    """The layers of the context encoder and of the future decoder, see `Forecaster`.

    `lanes` is int64 [B, M], the piece of a polyline of each lane token.
    """
    targets = observation.num_targets
    num_agents = observation.agent_mask.shape[1]
    lanes = lanes[:, None]
    agents = torch.arange(num_agents, device=lanes.device).expand(len(lanes), 1, -1)
    valid = observation.valid
    _, real = group_steps(valid[..., None].float(), valid, decoder.per_token)  # [B, A, H']
    num_past = num_agents * real.shape[-1]

    def of_context(weights: Tensor) -> Tensor:
        """[B, S, heads, H' * A + M]: tokens of agents in time-major order, then lanes."""
        by_step = weights[..., :num_past].unflatten(-1, (-1, num_agents))
        return to_agents_and_pieces(
            observation,
            agents=(by_step.sum(-2), agents.expand(-1, targets, -1)),
            pieces=(weights[..., num_past:], lanes.expand(-1, targets, -1)),
        )

    def of_encoder(weights: Tensor) -> Tensor:
        """[B, heads, L, L]: the mean over the real past tokens of a target."""
        rows = weights[:, :, :num_past].unflatten(2, (-1, num_agents))[:, :, :, :targets]
        rows = rows.permute(0, 3, 1, 2, 4)  # [B, S, heads, H', L]
        return of_context(masked_mean(rows, real[:, :targets, None, :, None], 3))

    def of_memory(weights: Tensor) -> Tensor:
        """[B, K, heads, A, L] of a future token of each agent: the mean over samples."""
        return of_context(weights[..., :targets, :].mean(1).transpose(1, 2))

    def of_futures(weights: Tensor) -> Tensor:
        """[B, K, heads, A, T * A] to the T future tokens so far."""
        rows = weights[..., :targets, :].mean(1).transpose(1, 2)
        by_step = rows.unflatten(-1, (-1, num_agents)).sum(-2)
        index = agents.expand(-1, targets, -1)
        return to_agents_and_pieces(observation, agents=(by_step, index))

    layers = []
    for number, layer in enumerate(context.encoder.attentions(), 1):
        layers.append(TargetAttention(f"encoder {number}", layer, of_encoder))
    for number, layer in enumerate(decoder.decoder.self_attentions(), 1):
        layers.append(TargetAttention(f"decoder {number}, to futures", layer, of_futures))
    for number, layer in enumerate(decoder.decoder.cross_attentions(), 1):
        layers.append(TargetAttention(f"decoder {number}, to the past", layer, of_memory))
    return layers
