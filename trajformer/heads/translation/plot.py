"""Picture of the cross-attention of a translation."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from trajformer.heads.translation.decoding import Translator
from trajformer.plotting.attention import draw_attention_matrix
from trajformer.plotting.scene import save_figure


def save_cross_attention(path: Path, model: Translator, source: str, target: str) -> None:
    """Write the attention of target tokens to source tokens as PNG: the last layer, averaged over heads."""
    rows, columns, weights = model.cross_attention(source, target)
    figure = Figure(figsize=(1.5 + 0.28 * len(columns), 1.5 + 0.28 * len(rows)), layout="constrained")
    draw_attention_matrix(figure.subplots(), weights[-1].mean(0).cpu().numpy(), rows, columns)
    save_figure(figure, path)
