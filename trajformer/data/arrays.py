"""Padded numpy arrays of several samples: the input of a model, without torch."""

from collections.abc import Sequence

import numpy as np

from trajformer.data.sample import Sample
from trajformer.errors import SceneError


def stack_arrays(samples: Sequence[Sample]) -> dict[str, np.ndarray]:
    """The arrays of samples, padded to a common size, by the names of `Sample.padded`.

    Arrays have a leading axis of B samples; enums become int64. Raises SceneError: there are no
    samples, or they differ in period, H, F or unit.
    """
    if not samples:
        raise SceneError("a batch needs at least one scene")
    first = samples[0]
    for sample in samples:
        if sample.clock != first.clock:
            clocks = f"{sample.clock} differ from {first.clock} of scene {first.scene_id}"
            raise SceneError(
                f"scene {sample.scene_id}: period, H, F and unit {clocks} in its batch"
            )
    arrays = {}
    for name in first.padded:
        arrays[name] = _pad([sample.padded[name] for sample in samples])
    return arrays


def _pad(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Stack arrays that differ in length along their first axis, padded with zeros.

    Enums become int64. `pad_sequence` of PyTorch takes four times as long.
    """
    first = parts[0]
    dtype: np.dtype = np.dtype(np.int64) if first.dtype == np.uint8 else first.dtype
    length = max(len(part) for part in parts)
    padded = np.zeros((len(parts), length, *first.shape[1:]), dtype)
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
    return padded
