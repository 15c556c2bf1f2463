"""Options and helpers shared by the commands of the reference heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jsonargparse.typing import PositiveInt

from trajformer.cli.parsing import Accelerator, Parser, add_accelerator
from trajformer.errors import TrajformerError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
R = TypeVar("R")


def add_model_options(parser: Parser, batch_size: int, items: str) -> None:
    """Add --checkpoint, --batch-size and --accelerator; `items` names the elements of a batch."""
    parser.add_argument("--checkpoint", type=Path, required=True, help="of a run, or made by `trajformer weights convert`")
    parser.add_argument("--batch-size", type=PositiveInt, default=batch_size, help=f"{items} per batch")
    add_accelerator(parser)


def load_model(checkpoint: Path, recipe: type[R], accelerator: Accelerator) -> tuple[Any, R, torch.device]:
    """The model of a checkpoint on its device, its recipe, and the device.

    Raises:
        TrajformerError: the checkpoint cannot be read or is for another task, or there is no such device.
    """
    from trajformer.recipes.checkpoint import load_checkpoint, pick_device

    device = pick_device(accelerator)
    model, config = load_checkpoint(checkpoint, recipe)
    return model.to(device), config, device


def list_inputs(images: Sequence[Path]) -> list[Path]:
    """The image files among files and folders.

    Raises:
        TrajformerError: no path is given, or one does not exist.
    """
    from trajformer.heads.images import list_images

    if not images:
        raise TrajformerError("give images or folders, or --split SPLIT to score a split of labeled ones")
    return list_images(images)


def read_batches(files: Sequence[Path], read: Callable[[Path], T], size: int) -> Iterator[tuple[list[Path], list[T]]]:
    """Batches of files and their content; at the end, unreadable files are printed.

    Raises:
        TrajformerError: no file can be read.
    """
    skipped = []
    for first in range(0, len(files), size):
        paths, items = [], []
        for path in files[first : first + size]:
            try:
                items.append(read(path))
                paths.append(path)
            except TrajformerError as error:
                skipped.append(" ".join(str(error).split()))
        if paths:
            yield paths, items
    for line in skipped:
        print(f"skipped {line}")
    if len(skipped) == len(files):
        raise TrajformerError(f"none of the {len(files)} images can be read")


def unique_name(stem: str, used: set[str]) -> str:
    """A file name `stem.png`, with a number if the name is in `used`; it is added to `used`."""
    number, name = 1, f"{stem}.png"
    while name in used:
        number += 1
        name = f"{stem}-{number}.png"
    used.add(name)
    return name
