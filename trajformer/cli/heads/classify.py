"""`trajformer classify`: classes of images, and the accuracy on a labeled split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from trajformer.cli.files import bars, make_folder
from trajformer.cli.heads.model_inputs import add_model_options, list_inputs, load_model, read_batches, unique_name
from trajformer.cli.parsing import Accelerator, Parser, new_parser
from trajformer.errors import TrajformerError


def classify_parser() -> Parser:
    """--checkpoint CKPT (IMAGE_OR_FOLDER... [--out DIR] | --split SPLIT)."""
    parser = new_parser(
        "Classify images, or score a classifier on a labeled split. Without --split, the most probable classes of each image are "
        "printed; unreadable files are listed and skipped. With --split, the images of this split of the training data are "
        "classified and compared with their labels."
    )
    parser.add_argument("images", nargs="*", type=Path, help="images or folders; with --split, the folder of another data set")
    parser.add_argument("--split", help="score this split (train, val, test)")
    parser.add_argument("--top", type=PositiveInt, default=3, help="number of classes printed per image")
    parser.add_argument("--out", type=Path, help="folder for a PNG of each image with its attention rollout and its classes")
    add_model_options(parser, 32, "images")
    return parser


def run_classify(args: Namespace) -> None:
    """`trajformer classify`."""
    options = {"accelerator": args.accelerator, "batch_size": args.batch_size}
    if args.split is None:
        classify(args.checkpoint, args.images, top=args.top, out=args.out, **options)
    elif args.out is None:
        score(args.checkpoint, args.images, args.split, **options)
    else:
        raise TrajformerError("--out is for images that are classified, not for --split")


def classify(
    checkpoint: Path, images: Sequence[Path], *, top: int, out: Path | None, accelerator: Accelerator, batch_size: int
) -> None:
    """Print the most probable classes of each image, and draw it if `out` is given.

    Raises:
        TrajformerError: there are no images, or none can be read.
    """
    import torch

    from trajformer.heads.vit.model import classify_with_rollout
    from trajformer.heads.vit.task import ClassificationRecipe

    files = list_inputs(images)
    model, recipe, device = load_model(checkpoint, ClassificationRecipe, accelerator)
    if out is not None:
        make_folder(out)
    names, used = recipe.names(), set[str]()
    for paths, originals in read_batches(files, recipe.read, batch_size):
        batch = torch.stack([recipe.prepare(image) for image in originals])  # [B, C, S, S]
        scores, rollout = classify_with_rollout(model, batch.to(device))
        probabilities, classes = scores.float().softmax(-1).topk(min(top, len(names)))
        for row, path in enumerate(paths):
            labels = [names[index] for index in classes[row].tolist()]
            p = probabilities[row].cpu().numpy()
            print("  ".join([str(path), *(f"{name} {value:.3f}" for name, value in zip(labels, p.tolist(), strict=True))]))
            if out is not None:
                from trajformer.heads.vit.plot import save_classification

                image = originals[row].permute(1, 2, 0).squeeze(-1).numpy()
                target = out / unique_name(path.stem, used)
                save_classification(target, path.stem, image, rollout[row].float().cpu().numpy(), labels, p)


def score(checkpoint: Path, images: Sequence[Path], split: str, *, accelerator: Accelerator, batch_size: int) -> float:
    """Classify a labeled split, print and return the accuracy, and print the most frequent mistakes.

    Raises:
        TrajformerError: the split cannot be used with this classifier.
    """
    import torch
    from torch.nn import functional as F
    from tqdm import tqdm

    from trajformer.heads.vit.task import ClassificationRecipe

    model, recipe, device = load_model(checkpoint, ClassificationRecipe, accelerator)
    if len(images) > 1:
        raise TrajformerError("--split takes one folder at most, with <split>/<class name>/ in it")
    for folder in images:
        recipe = replace(recipe, data=replace(recipe.data, dataset="folder", root=str(folder)))
    data = recipe.load(split)
    batches = []
    with torch.no_grad():
        for rows in tqdm(torch.arange(len(data)).split(batch_size), desc=split, unit="batch", disable=not bars()):
            batches.append(model(recipe.prepare(data[rows.tolist()].image).to(device)).float().cpu())
    scores = torch.cat(batches)
    predicted, entropy = scores.argmax(-1), F.cross_entropy(scores, data.label)
    correct = int((predicted == data.label).sum())
    accuracy, wrong = correct / len(data), len(data) - correct
    print(f"{data.name}: {len(data)} images, accuracy {accuracy:.2%} ({wrong} wrong), cross-entropy {entropy:.3f}")
    names = recipe.names()
    mistakes = Counter(pair for pair in zip(data.label.tolist(), predicted.tolist(), strict=True) if pair[0] != pair[1])
    for (label, other), count in mistakes.most_common(5):
        print(f"  {count} of {int((data.label == label).sum())} '{names[label]}' classified as '{names[other]}'")
    return accuracy
