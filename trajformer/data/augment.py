"""Augmentation of training batches, on their device, with an explicit random generator.

Each augmentation is a function (batch, generator, ...) -> batch; `augment` applies those that the
config enables.
"""

from dataclasses import dataclass

import torch

from trajformer.config import Config
from trajformer.data.augment_agents import crop, drop_agents, drop_lanes, shrink, thin
from trajformer.data.augment_space import flip, jitter_headings, jitter_positions, rotate, scale
from trajformer.data.augment_time import lose, mask_history, shift, tempo
from trajformer.data.batch import SceneBatch


@dataclass(frozen=True)
class AugmentConfig(
    Config,
    fractions=(
        "flip",
        "scale",
        "tempo",
        "agent_dropout",
        "lane_dropout",
        "shift",
        "lost",
        "history_mask",
    ),
):
    """Strength of each augmentation.

    Attributes:
        flip: probability of mirroring a scene.
        rotate: rotate every scene by a uniform angle within +-`rotate` radians. SE(2)-equivariant
            models do not notice this; use `heading_noise` for them.
        heading_noise: standard deviation in radians of the noise on every agent's reference
            heading, and so on its frame.
        scale: stretch every scene by a uniform factor in 1 - scale to 1 + scale, speeds included.
        noise_m: add normal noise to the observed positions of half of the scenes, with a standard
            deviation uniform up to this many metres, and to velocities accordingly, which readers
            measure over about half a second; reference poses stay. Recordings differ in their
            noise.
        max_targets: keep at most this many targets of each scene: the scored ones, then randomly
            chosen others, mostly ones that move. The rest become context. 0 keeps all targets.
        crop: keep only this many agents of larger crowds: the agents nearest to a randomly chosen
            target. The cost of models that attend over all agents and steps grows with the square
            of both. 0 keeps all agents.
        agent_dropout: probability of hiding each agent that is not a target.
        lane_dropout: probability of hiding each polyline.
        tempo: replay every scene faster or slower, by a uniform factor in 1 - tempo to 1 + tempo,
            on the same lanes. Futures that are replayed faster end earlier.
        shift: probability of a temporal shift: the scene is observed some steps earlier, if all its
            scored targets are visible then, and the last observed steps become part of the future.
            This adds pasts and futures; histories get shorter. Other targets that are not visible
            then are removed, and all agents first seen less than half a second before.
        shift_steps: largest shift in steps.
        lost: probability of losing each agent in the last second of its history, as trackers do.
        history_mask: probability of hiding the start of an agent's history.
        history_mask_steps: largest number of hidden steps (mmTransformer: 10).
    """

    flip: float = 0.5
    rotate: float = 0.0
    heading_noise: float = 0.0
    scale: float = 0.0
    noise_m: float = 0.0
    tempo: float = 0.0
    max_targets: int = 0
    crop: int = 0
    agent_dropout: float = 0.1
    lane_dropout: float = 0.0
    shift: float = 0.0
    shift_steps: int = 10
    lost: float = 0.1
    history_mask: float = 0.2
    history_mask_steps: int = 10


def augment(batch: SceneBatch, config: AugmentConfig, generator: torch.Generator) -> SceneBatch:
    """Apply all augmentations that the config enables.

    On a CPU, `shrink` follows; a GPU would have to wait for the sizes.
    """
    # The order determines the random numbers of each augmentation.
    if config.crop:
        batch = crop(batch, generator, config.crop)
    if config.max_targets:
        batch = thin(batch, generator, config.max_targets)
    if config.shift:
        batch = shift(batch, generator, config.shift, config.shift_steps)
    if config.tempo:
        batch = tempo(batch, generator, config.tempo)
    if config.lost:
        batch = lose(batch, generator, config.lost)
    if config.flip:
        batch = flip(batch, generator, config.flip)
    if config.rotate:
        batch = rotate(batch, generator, config.rotate)
    if config.heading_noise:
        batch = jitter_headings(batch, generator, config.heading_noise)
    if config.scale:
        batch = scale(batch, generator, config.scale)
    if config.noise_m:
        batch = jitter_positions(batch, generator, config.noise_m)
    if config.agent_dropout:
        batch = drop_agents(batch, generator, config.agent_dropout)
    if config.lane_dropout:
        batch = drop_lanes(batch, generator, config.lane_dropout)
    if config.history_mask:
        batch = mask_history(batch, generator, config.history_mask, config.history_mask_steps)
    if batch.observation.position.device.type == "cpu":
        batch = shrink(batch)
    return batch
