"""Random numbers of augmentations, which are the same on CPU and GPU."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch


def draw(
    make: Callable[..., Tensor],
    shape: Sequence[int],
    generator: torch.Generator,
    device: torch.device,
) -> Tensor:
    """Numbers of `torch.rand` or `torch.randn` from the generator's device, moved to `device`."""
    drawn = make(tuple(shape), generator=generator, device=generator.device)
    return drawn.to(device, non_blocking=True)


def per_scene(batch: SceneBatch, generator: torch.Generator) -> Tensor:
    """A uniform random number in 0..1 for each scene [B]."""
    return draw(torch.rand, (batch.num_scenes,), generator, batch.observation.position.device)


def centered(batch: SceneBatch, generator: torch.Generator) -> Tensor:
    """A uniform random number in -1..1 for each scene [B]."""
    return 2 * per_scene(batch, generator) - 1
