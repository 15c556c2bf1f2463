"""Picture of a classification: the image, its attention rollout, and the class probabilities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from trajformer.plotting import style
from trajformer.plotting.attention import draw_attention_map, draw_image, draw_shares
from trajformer.plotting.scene import save_figure


def save_classification(path: Path, title: str, image: np.ndarray, rollout: np.ndarray, names: list[str], p: np.ndarray) -> None:
    """Write the picture as PNG.

    Args:
        path: path of the PNG.
        title: title of the image.
        image: [H, W] or [H, W, 3] in 0..1.
        rollout: attention rollout [rows, columns] over the patches.
        names: names of the most probable classes.
        p: their probabilities.
    """
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.1))
    draw_image(left, image).set_title(title, fontsize=style.FONT_PT, parse_math=False)
    draw_attention_map(middle, image, rollout).set_title("attention rollout", fontsize=style.FONT_PT)
    draw_shares(right, names, p).set_title("probability", fontsize=style.FONT_PT)
    save_figure(figure, path)
    figure.clear()
