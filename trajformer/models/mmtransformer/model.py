"""mmTransformer (Liu et al., CVPR 2021): stacked transformers over motion, map and neighbours.

K proposals per agent are queries that pass through a motion extractor (its own history), a map aggregator (lanes) and
a social constructor (neighbours). Read as the paper has it, with these choices of ours: every agent is normalised in
its own frame instead of one target's, so that all targets of a scene are predicted in one pass; positions of the
history are learned and added at each attention (DETR style); proposals start from orthogonal learned queries; offsets
are cumulated on top of constant velocity. The released code's way to the heads is `social_output: appended`.

With `regions` proposals k * N to (k + 1) * N - 1 are those of region k, whose borders are part of the model.

With `joint` (ours, not the paper's) proposal k of all targets is one world: in the social constructor it meets the others'
k-th proposals only, and a world's score is that of its targets' mean feature.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast, consensus, endpoint_nms
from trajformer.errors import TrajformerError
from trajformer.models.horizon import at_least_one, check_lengths, from_offsets, of_worlds
from trajformer.models.mmtransformer.parts import MapAggregator, MMTransformerConfig, MotionExtractor, SocialConstructor
from trajformer.models.mmtransformer.regions import first_regions
from trajformer.models.tokens import mlp

__all__ = ["MMTransformer", "MMTransformerConfig"]


class MMTransformer(nn.Module):
    """SceneBatch -> Forecast in each target's own frame, K = `proposals` in training, `modes` in evaluation.

    Every social decoder layer's forecast is kept as auxiliary, for the same losses. `regions` [M, 3] is what
    `models.regions` says, None without them.

    Raises:
        TrajformerError: parts or sizes that do not go together.
    """

    regions: Tensor | None

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        _check(config)
        self.config = config
        width, decoded = config.block.width, config.social_output == "decoded"
        self.motion = MotionExtractor(config)
        self.map = MapAggregator(config, config.map_layers) if config.map_layers else None
        self.social = SocialConstructor(config, config.social_layers) if config.social_layers else None
        queried = self.map is not None or (self.social is not None and decoded)
        self.position = nn.Parameter(torch.randn(config.proposals, width) * 0.02) if queried else None
        inputs = width if decoded else 2 * width
        self.trajectory = mlp(inputs, width, width, config.num_future * 2)
        self.score = mlp(inputs, width, width, 1)
        self.register_buffer("regions", first_regions(config.regions) if config.regions else None)

    def forward(self, batch: SceneBatch) -> Forecast:
        """Predict every target of every scene.

        Raises:
            TrajformerError: the batch wants another horizon than the model was built for, or a longer history.
        """
        check_lengths(batch, self.config.num_future, self.config.max_history)
        *earlier, last = [self._decode(batch, layer) for layer in self._layers(batch)]
        forecast = replace(last, auxiliary=tuple(earlier))
        if self.training or self.config.joint:
            return forecast
        if self.config.modes < self.config.proposals:
            forecast = endpoint_nms(forecast, self.config.modes, self.config.nms_radius_m)
        return consensus(forecast, self.config.consensus_m)

    def _layers(self, batch: SceneBatch) -> list[Tensor]:
        """Features [B, S, K, ...] of the targets' proposals after each social decoder layer, or after the part before."""
        everyone = self.motion(batch)
        targets = everyone[:, : batch.num_targets]
        if self.map is not None and self.config.neighbour_map:
            everyone = self.map(batch, everyone, self.position)
            targets = everyone[:, : batch.num_targets]
        elif self.map is not None:
            targets = self.map(batch, targets, self.position)
        if self.social is None:
            return [targets]
        if self.config.joint:  # what a target is about to do on its lane is what the others must know
            first = torch.where(batch.target_mask[..., None, None], targets, everyone[:, : batch.num_targets])
            everyone = torch.cat([first, everyone[:, batch.num_targets :]], 1)
        return self.social(batch, everyone, targets, self.position)

    def _decode(self, batch: SceneBatch, x: Tensor) -> Forecast:
        """Features [B, S, K, ...] to a forecast, whose scores are of worlds [B, K] with `joint`."""
        scored = of_worlds(batch, x) if self.config.joint else x
        return from_offsets(batch, self.trajectory(x), self.score(scored))


def _check(config: MMTransformerConfig) -> None:
    at_least_one("mmtransformer", config, "proposals", "modes", "steps_per_token", "max_neighbours")
    if config.regions is not None:
        at_least_one("mmtransformer.regions", config.regions, "count")
    proposals, regions, decoded = config.proposals, config.regions, config.social_output == "decoded"
    stacks = {"motion_layers": config.motion_layers, "map_layers": config.map_layers}
    for name, layers in (stacks | {"social_layers": config.social_layers if decoded else None}).items():
        if layers and layers[1] < 1:
            raise TrajformerError(f"mmtransformer.{name}: {layers}, its decoder has at least one layer")
    if config.modes > proposals:
        raise TrajformerError(f"mmtransformer.modes: {config.modes} of only {proposals} proposals")
    if regions is not None and proposals % regions.count:
        raise TrajformerError(f"mmtransformer.proposals: {proposals}, no multiple of {regions.count} regions")
    if not decoded and not config.social_layers:
        raise TrajformerError("mmtransformer.social_output: there is no social memory to append without social_layers")
    if config.joint and (config.modes < proposals or regions is not None or not config.social_layers):
        raise TrajformerError("mmtransformer.joint: wants social_layers, as many modes as proposals and no regions")
