"""Options and steps that `classify`, `detect` and `translate` share."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trajformer.cli.files import check_outputs
from trajformer.cli.parsing import BatchSize, Parser, add_accelerator, add_overwrite
from trajformer.errors import TrajformerError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def add_model(parser: Parser, batch_size: int, items: str) -> None:
    """Add the options of a command with a model; `items` names the elements of a batch."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        help="checkpoint of a run, or made by `trajformer weights convert`",
    )
    parser.add_argument(
        "--batch-size", type=BatchSize, default=batch_size, help=f"{items} per batch"
    )
    add_accelerator(parser)
    add_overwrite(parser)


def load_model(args: Namespace, recipe_class: type[T]) -> tuple[Any, T, torch.device]:
    """The model of --checkpoint on its device, its recipe, and the device."""
    from trajformer.recipes.checkpoint import load_checkpoint, pick_device

    device = pick_device(args.accelerator)
    model, recipe = load_checkpoint(args.checkpoint, recipe_class)
    return model.to(device), recipe, device


def read_batches(args: Namespace, read: Callable[[Path], T]) -> Iterator[list[tuple[Path, T]]]:
    """Batches of the images of a command, each image with its content.

    Unreadable images are printed at the end (TrajformerError: all are unreadable).
    """
    from trajformer.heads.images import list_images, summed_up

    if not args.images:
        hint = "--split SPLIT to score a split of labeled ones"
        raise TrajformerError(f"give images or folders, or {hint}")
    check_outputs(args, out="folder")
    files = list_images(args.images)
    skipped = []
    for start in range(0, len(files), args.batch_size):
        batch = []
        for path in files[start : start + args.batch_size]:
            try:
                batch.append((path, read(path)))
            except TrajformerError as error:
                skipped.append(f"skipped {error}")
        if batch:
            yield batch
    for line in summed_up(skipped):
        print(line)
    if len(skipped) == len(files):
        raise TrajformerError(f"none of the {len(files)} images can be read")


def other_folder(args: Namespace, content: str) -> str | None:
    """The folder of another data set for --split, if given (TrajformerError: several folders)."""
    if len(args.images) > 1:
        raise TrajformerError(f"--split takes one folder at most, with {content} in it")
    return str(args.images[0]) if args.images else None


class PictureNames:
    """Names of the pictures in a folder; pictures of images with the same name have a number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used: set[Path] = set()

    def new(self, stem: str) -> Path:
        """A file `stem.png` of the folder that was not returned before."""
        path = self.folder / f"{stem}.png"
        number = 1
        while path in self.used:
            number += 1
            path = self.folder / f"{stem}-{number}.png"
        self.used.add(path)
        return path
