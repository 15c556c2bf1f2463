"""The palette is readable for color-blind people and in gray prints."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from trajformer.plotting import style

# Machado, Oliveira and Fernandes 2009, severity 1, in linear light
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def cielab(color: str, vision: np.ndarray) -> np.ndarray:
    """Lightness, a and b of a color as seen."""
    srgb = np.array(to_rgb(color))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(vision @ linear, 0.0, 1.0) / WHITE
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("name", list(VISION))
def test_colors_of_agents_differ_for_all_readers(name: str) -> None:
    seen = [cielab(color, VISION[name]) for color in style.AGENT_COLORS]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) > 17


def test_colors_of_agents_differ_in_gray() -> None:
    lightness = sorted(cielab(color, np.eye(3))[0] for color in style.AGENT_COLORS)
    assert np.diff(lightness).min() > 4.5
    assert lightness[-1] < 80, "visible on white"
