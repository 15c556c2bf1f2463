"""Telling what pictures show, and how often that is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trajformer.cli.files import bars, make_folder
from trajformer.cli.run_models import Accelerator
from trajformer.errors import TrajformerError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from trajformer.heads.vit.model import ViT
    from trajformer.heads.vit.task import ClassificationRecipe


def _load(checkpoint: Path, accelerator: Accelerator) -> tuple[ViT, ClassificationRecipe, torch.device]:
    from trajformer.heads.vit.model import ViT
    from trajformer.heads.vit.task import ClassificationRecipe
    from trajformer.recipes.checkpoint import load_checkpoint, pick_device

    device = pick_device(accelerator)
    model, recipe = load_checkpoint(checkpoint, ClassificationRecipe)
    assert isinstance(model, ViT)
    return model.to(device), recipe, device


def classify(
    checkpoint: Path, images: Sequence[Path], *, top: int, out: Path | None, accelerator: Accelerator, batch_size: int
) -> None:
    """Print the most probable classes of every picture, and draw it where `out` is given; then list what was skipped.

    Raises:
        TrajformerError: there are no pictures, or none that can be read.
    """
    from trajformer.heads.images import list_images
    from trajformer.heads.vit.model import classify_with_rollout

    if not images:
        raise TrajformerError("give pictures or folders, or --split SPLIT to score a split of labelled ones")
    files = list_images(images)
    model, recipe, device = _load(checkpoint, accelerator)
    if out is not None:
        make_folder(out)
    names, skipped = recipe.names(), list[str]()
    taken: set[str] = set()
    for paths, originals, batch in _batches(files, recipe, batch_size, skipped):
        scores, seen = classify_with_rollout(model, batch.to(device))
        probability, place = scores.float().softmax(-1).topk(min(top, len(names)))
        for row, path in enumerate(paths):
            found = [names[index] for index in place[row].tolist()]
            shares = probability[row].cpu().numpy()
            print("  ".join([str(path), *(f"{name} {share:.3f}" for name, share in zip(found, shares.tolist(), strict=True))]))
            if out is not None:
                picture = originals[row].permute(1, 2, 0).squeeze(-1).numpy()
                _draw(out / _free_name(path, taken), picture, seen[row].float().cpu().numpy(), found, shares)
    for line in skipped:
        print(f"skipped {line}")
    if len(skipped) == len(files):
        raise TrajformerError(f"none of the {len(files)} pictures can be read")


def _batches(
    files: Sequence[Path], recipe: ClassificationRecipe, size: int, skipped: list[str]
) -> Iterator[tuple[list[Path], list[Tensor], Tensor]]:
    """Paths, pictures as they are, and the same as the model wants them [B, C, S, S]; complaints go to `skipped`."""
    import torch

    for first in range(0, len(files), size):
        paths, originals = [], []
        for path in files[first : first + size]:
            try:
                originals.append(recipe.read(path))
                paths.append(path)
            except TrajformerError as error:
                skipped.append(" ".join(str(error).split()))
        if paths:
            yield paths, originals, torch.stack([recipe.prepare(image) for image in originals])


def _free_name(path: Path, taken: set[str]) -> str:
    """A name for the picture of a file that no other has in this run."""
    number, name = 1, f"{path.stem}.png"
    while name in taken:
        number += 1
        name = f"{path.stem}-{number}.png"
    taken.add(name)
    return name


def _draw(path: Path, picture: np.ndarray, seen: np.ndarray, names: list[str], shares: np.ndarray) -> None:
    """The picture, what it was classified by, and the classes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from trajformer.plotting import style
    from trajformer.plotting.attention import draw_attention_map, draw_image, draw_shares
    from trajformer.plotting.scene import save_figure

    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    shown, attended, bars_of = figure.subplots(1, 3, width_ratios=(1, 1, 1.1))
    draw_image(shown, picture).set_title(path.stem, fontsize=style.FONT_PT, parse_math=False)
    draw_attention_map(attended, picture, seen).set_title("attention rollout", fontsize=style.FONT_PT)
    draw_shares(bars_of, names, shares).set_title("probability", fontsize=style.FONT_PT)
    save_figure(figure, path)
    figure.clear()


def score(checkpoint: Path, images: Sequence[Path], split: str, *, accelerator: Accelerator, batch_size: int) -> float:
    """Classify a split of labelled pictures, print the share that is right and the commonest mistakes; returns the share.

    Raises:
        TrajformerError: the split cannot be used with this classifier.
    """
    import torch
    from torch.nn import functional as F
    from tqdm import tqdm

    model, recipe, device = _load(checkpoint, accelerator)
    if len(images) > 1:
        raise TrajformerError("--split wants one folder at most, with <split>/<class name>/ in it")
    for folder in images:
        recipe = replace(recipe, data=replace(recipe.data, dataset="folder", root=str(folder)))
    data = recipe.load(split)
    scores = []
    with torch.no_grad():
        for rows in tqdm(torch.arange(len(data)).split(batch_size), desc=split, unit="batch", disable=not bars()):
            ready = recipe.prepare(data[rows.tolist()].image)
            scores.append(model(ready.to(device)).float().cpu())
    found = torch.cat(scores)
    guess, entropy = found.argmax(-1), F.cross_entropy(found, data.label)
    right = int((guess == data.label).sum())
    share, wrong = right / len(data), len(data) - right
    print(f"{data.name}: {len(data)} pictures, accuracy {share:.2%} ({wrong} wrong), cross-entropy {entropy:.3f}")
    names = recipe.names()
    mistakes = Counter(pair for pair in zip(data.label.tolist(), guess.tolist(), strict=True) if pair[0] != pair[1])
    for (label, taken_for), count in mistakes.most_common(5):
        print(f"  {count} of {int((data.label == label).sum())} '{names[label]}' taken for '{names[taken_for]}'")
    return share
