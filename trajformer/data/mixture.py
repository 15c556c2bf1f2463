"""The scenes of an epoch of a training with several data sets."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Mixture:
    """The numbers of scenes that an epoch takes from each of several sources.

    `counts` are the scenes of the sources, numbered one source after the other, and `drawn` those
    of one epoch. A source is used in rounds: every scene once in random order, then again in
    another order. An epoch continues where the one before it ended, so that no scene is used twice
    before all others of its source were used once.
    """

    counts: tuple[int, ...]
    drawn: tuple[int, ...]
    seed: int

    def epoch(self, number: int) -> np.ndarray:
        """The scenes of an epoch, int64 [sum of drawn], source by source."""
        chosen = []
        start = 0
        for source, (count, drawn) in enumerate(zip(self.counts, self.drawn, strict=True)):
            position = np.arange(number * drawn, (number + 1) * drawn)
            in_round = position % count
            for turn in np.unique(position // count).tolist():
                # The last number keeps these random numbers apart from those of the order.
                rng = np.random.default_rng((self.seed, turn, source, 1))
                order = rng.permutation(count)
                chosen.append(start + order[in_round[position // count == turn]])
            start += count
        return np.concatenate(chosen)
