"""`trajformer classify`: classes of images, or the accuracy of a classifier on a labeled split."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from trajformer.cli.files import bars
from trajformer.cli.heads import PictureNames, add_model, load_model, other_folder, read_batches
from trajformer.cli.parsing import Parser, PositiveInt, new_parser
from trajformer.errors import TrajformerError

if TYPE_CHECKING:
    from torch import Tensor

NUM_MISTAKES = 5  # printed for a split


def parser() -> Parser:
    """--checkpoint CKPT (IMAGE_OR_FOLDER... [--out DIR] | --split SPLIT)."""
    made = new_parser(
        "Classify images, or score a classifier on a labeled split. Without --split, the most "
        "probable classes of each image are printed; unreadable files are listed and skipped. With "
        "--split, the images of this split of the training data are classified and compared with "
        "their labels."
    )
    made.add_argument(
        "images",
        nargs="*",
        type=Path,
        help="images or folders; with --split, the folder of another data set",
    )
    made.add_argument("--split", help="score this split (train, val, test)")
    made.add_argument(
        "--top", type=PositiveInt, default=3, help="number of classes printed per image"
    )
    made.add_argument(
        "--out",
        type=Path,
        help="folder for a PNG of each image with its attention rollout and its classes",
    )
    add_model(made, 32, "images")
    return made


def run(args: Namespace) -> None:
    """Classify images, or score a split."""
    if args.split is None:
        _classify(args)
    else:
        _score(args)


def _classify(args: Namespace) -> None:
    """Print the most probable classes of each image, and draw it with --out."""
    import torch

    from trajformer.heads.vit.model import classify_with_rollout
    from trajformer.heads.vit.task import ClassificationRecipe

    model, recipe, device = load_model(args, ClassificationRecipe)
    names = recipe.names()
    pictures = None if args.out is None else PictureNames(args.out)
    for batch in read_batches(args, recipe.read):
        prepared = torch.stack([recipe.prepare(image) for _, image in batch])  # [B, C, S, S]
        scores, rollout = classify_with_rollout(model, prepared.to(device))
        top = scores.float().softmax(-1).cpu().topk(min(args.top, len(names)))
        for index, (path, image) in enumerate(batch):
            labels = [names[label] for label in top.indices[index].tolist()]
            probabilities = top.values[index]
            words = [str(path)]
            for label, probability in zip(labels, probabilities.tolist(), strict=True):
                words.append(f"{label} {probability:.3f}")
            print("  ".join(words))
            if pictures is not None:
                from trajformer.heads.plot import save_classification

                file = pictures.new(path.stem)
                values = probabilities.numpy()
                save_classification(file, path.stem, image, rollout[index], labels, values)


def _score(args: Namespace) -> None:
    """Print the accuracy on a split and the most frequent mistakes."""
    import torch
    from torch.nn import functional as F

    from trajformer.heads.vit.task import ClassificationRecipe

    if args.out is not None:
        raise TrajformerError("--out is for images that are classified, not for --split")
    model, recipe, device = load_model(args, ClassificationRecipe)
    folder = other_folder(args, "<split>/<class name>/")
    if folder:
        recipe = replace(recipe, data=replace(recipe.data, dataset="folder", root=folder))
    data = recipe.load(args.split)
    rows_of_batches = torch.arange(len(data)).split(args.batch_size)
    batches = []
    with torch.no_grad():
        for rows in tqdm(rows_of_batches, desc=args.split, unit="batch", disable=not bars()):
            images = recipe.prepare(data[rows.tolist()].image)
            batches.append(model(images.to(device)).float().cpu())
    scores = torch.cat(batches)
    predicted = scores.argmax(-1)
    entropy = F.cross_entropy(scores, data.label)
    num_wrong = int((predicted != data.label).sum())
    accuracy = (len(data) - num_wrong) / len(data)
    result = f"accuracy {accuracy:.2%} ({num_wrong} wrong), cross-entropy {entropy:.3f}"
    print(f"{data.name}: {len(data)} images, {result}")
    _print_mistakes(data.label, predicted, recipe.names())


def _print_mistakes(label: Tensor, predicted: Tensor, names: tuple[str, ...]) -> None:
    """Print the most frequent pairs of label and predicted class [B] that differ."""
    wrong = label != predicted
    pairs = zip(label[wrong].tolist(), predicted[wrong].tolist(), strict=True)
    num_images = Counter(label.tolist())
    for (true, other), count in Counter(pairs).most_common(NUM_MISTAKES):
        total = num_images[true]
        print(f"  {count} of {total} '{names[true]}' classified as '{names[other]}'")
