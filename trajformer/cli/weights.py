"""Published weights, made into checkpoints."""

from __future__ import annotations

from pathlib import Path

from trajformer.cli.files import make_room
from trajformer.errors import TrajformerError


def convert(layout: str, file: Path, out: Path, *, heads: int | None, labels: Path | None) -> None:
    """Write a checkpoint and print what it holds.

    Raises:
        TrajformerError: the file or the labels cannot be used, or `out` cannot be written.
    """
    from trajformer.cli import convert as weights
    from trajformer.core.weights import Options

    names = _read_labels(labels) if labels is not None else ()
    recipe, tensors = weights.convert(layout, file, Options(heads, names))
    make_room(out)
    weights.write_checkpoint(out, recipe, tensors)
    numbers = sum(tensor.numel() for tensor in tensors.values())
    print(f"{out}: a model for {recipe.task}, {len(tensors)} tensors, {numbers:,} parameters")


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise TrajformerError(f"{path}: labels cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if "" in names or len(set(names)) < len(names):
        raise TrajformerError(f"{path}: an empty line or a name that occurs twice; expected a class a line")
    return names
