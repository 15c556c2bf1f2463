"""`trajformer classify`, `detect` and `translate`: apply the reference heads to files, or score them on labeled data."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jsonargparse import Namespace
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, PositiveInt
from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs
from trajformer.cli.parsing import Parser, add_accelerator, add_overwrite, new_parser
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    import torch

    from trajformer.heads.detr.data import DetectionBatch
    from trajformer.heads.detr.model import Detr, Objects

NMS_IOU = 0.7  # IoU threshold of --nms
MAX_DRAWN = 8  # number of images of a split that are drawn
MAX_MAPS = 3  # number of objects per image with attention maps
ROWS = "detections.jsonl"
T = TypeVar("T")


def _add_model_options(parser: Parser, batch_size: int, items: str) -> Parser:
    """Add the options that the commands share; `items` names the elements of a batch."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        help="of a run, or made by `trajformer weights convert`",
    )
    parser.add_argument(
        "--batch-size", type=PositiveInt, default=batch_size, help=f"{items} per batch"
    )
    add_accelerator(parser)
    add_overwrite(parser)
    return parser


def _load_model(args: Namespace, recipe: type[T]) -> tuple[Any, T, torch.device]:
    """The model of --checkpoint on its device, its recipe, and the device."""
    from trajformer.recipes.checkpoint import load_checkpoint, pick_device

    device = pick_device(args.accelerator)
    model, config = load_checkpoint(args.checkpoint, recipe)
    return model.to(device), config, device


def _read_batches(args: Namespace, read: Callable[[Path], T]) -> Iterator[list[tuple[Path, T]]]:
    """Batches of the images of a command with their content; unreadable ones are printed at the end, an error if all are."""
    from trajformer.heads.images import list_images

    if not args.images:
        raise TrajformerError(
            "give images or folders, or --split SPLIT to score a split of labeled ones"
        )
    check_outputs(args, out="folder")
    files, size, skipped = list_images(args.images), args.batch_size, []
    for first in range(0, len(files), size):
        batch = []
        for path in files[first : first + size]:
            try:
                batch.append((path, read(path)))
            except TrajformerError as error:
                skipped.append(" ".join(str(error).split()))
        if batch:
            yield batch
    for line in skipped:
        print(f"skipped {line}")
    if len(skipped) == len(files):
        raise TrajformerError(f"none of the {len(files)} images can be read")


def _free_file(folder: Path, stem: str, used: set[Path]) -> Path:
    """A file `stem.png` of the folder, with a number if it is in `used`; it is added to `used`."""
    number, path = 1, folder / f"{stem}.png"
    while path in used:
        number += 1
        path = folder / f"{stem}-{number}.png"
    used.add(path)
    return path


def _other_folder(args: Namespace, content: str) -> str | None:
    """The folder for --split, if one is given."""
    if len(args.images) > 1:
        raise TrajformerError(f"--split takes one folder at most, with {content} in it")
    return str(args.images[0]) if args.images else None


def classify_parser() -> Parser:
    """--checkpoint CKPT (IMAGE_OR_FOLDER... [--out DIR] | --split SPLIT)."""
    parser = new_parser(
        "Classify images, or score a classifier on a labeled split. Without --split, the most probable classes of each image are "
        "printed; unreadable files are listed and skipped. With --split, the images of this split of the training data are "
        "classified and compared with their labels."
    )
    parser.add_argument(
        "images",
        nargs="*",
        type=Path,
        help="images or folders; with --split, the folder of another data set",
    )
    parser.add_argument("--split", help="score this split (train, val, test)")
    parser.add_argument(
        "--top", type=PositiveInt, default=3, help="number of classes printed per image"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for a PNG of each image with its attention rollout and its classes",
    )
    return _add_model_options(parser, 32, "images")


def run_classify(args: Namespace) -> None:
    """Print the most probable classes of each image, and draw it; or score a split."""
    import torch

    from trajformer.heads.vit import ClassificationRecipe, classify_with_rollout

    if args.split is not None:
        return _score_classifier(args)
    model, recipe, device = _load_model(args, ClassificationRecipe)
    names, used = recipe.names(), set[Path]()
    for batch in _read_batches(args, recipe.read):
        prepared = torch.stack([recipe.prepare(image) for _, image in batch])  # [B, C, S, S]
        scores, rollout = classify_with_rollout(model, prepared.to(device))
        probabilities, classes = scores.float().softmax(-1).cpu().topk(min(args.top, len(names)))
        for (path, image), p, rows, share in zip(
            batch, probabilities, classes.tolist(), rollout, strict=True
        ):
            labels = [names[index] for index in rows]
            print(
                "  ".join(
                    [
                        str(path),
                        *(
                            f"{name} {value:.3f}"
                            for name, value in zip(labels, p.tolist(), strict=True)
                        ),
                    ]
                )
            )
            if args.out is not None:
                from trajformer.heads.plot import save_classification

                save_classification(
                    _free_file(args.out, path.stem, used),
                    path.stem,
                    image,
                    share,
                    labels,
                    p.numpy(),
                )


def _score_classifier(args: Namespace) -> None:
    """Print the accuracy on a split and the most frequent mistakes."""
    import torch
    from torch.nn import functional as F

    from trajformer.heads.vit import ClassificationRecipe

    if args.out is not None:
        raise TrajformerError("--out is for images that are classified, not for --split")
    model, recipe, device = _load_model(args, ClassificationRecipe)
    if folder := _other_folder(args, "<split>/<class name>/"):
        recipe = replace(recipe, data=replace(recipe.data, dataset="folder", root=folder))
    data, names, batches = recipe.load(args.split), recipe.names(), []
    with torch.no_grad():
        for rows in tqdm(
            torch.arange(len(data)).split(args.batch_size),
            desc=args.split,
            unit="batch",
            disable=not bars(),
        ):
            batches.append(
                model(recipe.prepare(data[rows.tolist()].image).to(device)).float().cpu()
            )
    scores = torch.cat(batches)
    predicted, entropy = scores.argmax(-1), F.cross_entropy(scores, data.label)
    mistakes = Counter(
        pair
        for pair in zip(data.label.tolist(), predicted.tolist(), strict=True)
        if pair[0] != pair[1]
    )
    wrong = mistakes.total()
    accuracy = (len(data) - wrong) / len(data)
    print(
        f"{data.name}: {len(data)} images, accuracy {accuracy:.2%} ({wrong} wrong), cross-entropy {entropy:.3f}"
    )
    for (label, other), count in mistakes.most_common(5):
        print(
            f"  {count} of {int((data.label == label).sum())} '{names[label]}' classified as '{names[other]}'"
        )


def detect_parser() -> Parser:
    """--checkpoint CKPT (IMAGE_OR_FOLDER... [--out DIR] | [FOLDER] --split SPLIT)."""
    parser = new_parser(
        "Detect objects in images, or score a detector on a labeled split. Without --split, the class, score and corners (left, "
        "top, right, bottom; pixels) of each object are printed; unreadable files are listed and skipped. With --split, the "
        "average precision of COCO on this split of the training data is printed: mean over thresholds, at 0.5, and per class."
    )
    parser.add_argument(
        "images",
        nargs="*",
        type=Path,
        help="images or folders; with --split, another Pascal VOC folder",
    )
    parser.add_argument("--split", help="score this split (train, val, test)")
    parser.add_argument(
        "--out", type=Path, help="folder for detections.jsonl (one line per image) and PNG files"
    )
    parser.add_argument(
        "--score",
        type=ClosedUnitInterval,
        default=0.5,
        help="minimum score of printed and drawn objects",
    )
    parser.add_argument(
        "--nms", action="store_true", help="join all decoder layers by non-maximum suppression"
    )
    parser.add_argument(
        "--attention", action="store_true", help="also draw attention maps of the best objects"
    )
    return _add_model_options(parser, 8, "images")


def _predict(model: Detr, batch: DetectionBatch, score: float, nms: bool) -> list[Objects]:
    """Objects with a higher score in each image of a batch, in pixels of the original image, on the CPU."""
    import torch

    from trajformer.heads.detr.model import postprocess

    with torch.no_grad():
        detections = model(batch.pixels, batch.mask)
    return [
        o.to("cpu")
        for o in postprocess(detections, batch.original, score=score, nms=NMS_IOU if nms else None)
    ]


def _json_line(image: str, size: tuple[int, int], objects: Objects, names: Sequence[str]) -> str:
    """A line of detections.jsonl: boxes are left, top, right and bottom in pixels of the original image."""
    rows = [
        {
            "label": names[label],
            "score": round(value, 5),
            "box": [round(corner, 2) for corner in box],
        }
        for box, value, label in objects.rows()
    ]
    return json.dumps({"image": image, "width": size[1], "height": size[0], "objects": rows}) + "\n"


def run_detect(args: Namespace) -> None:
    """Print the objects in each image, and write and draw them with --out; or score a split."""
    from trajformer.heads.detr.data import collate, read_example, resize_example
    from trajformer.heads.detr.model import attention_maps
    from trajformer.heads.detr.task import DetectionRecipe

    if args.split is not None:
        return _score_detector(args)
    if args.attention and args.out is None:
        raise TrajformerError("--attention needs a folder for its pictures: --out DIR")
    model, recipe, device = _load_model(args, DetectionRecipe)
    names, used, lines = recipe.names(), set[Path](), []
    for batch in _read_batches(args, read_example):
        resized = [
            resize_example(example, recipe.data.shorter, recipe.data.longest)
            for _, example in batch
        ]
        predicted = _predict(model, collate(resized).to(device), args.score, args.nms)
        for (path, example), small, objects in zip(batch, resized, predicted, strict=True):
            counts = Counter(names[label] for label in objects.label.tolist())
            summary = ", ".join(f"{number} {name}" for name, number in counts.most_common())
            print(f"{path}: {summary or 'no objects'}")
            width = max((len(name) for name in counts), default=0)
            for box, value, label in objects.rows():
                print(
                    f"  {names[label]:<{width}} {value:.3f} "
                    + " ".join(f"{corner:8.1f}" for corner in box)
                )
            lines.append(_json_line(str(path), example.original, objects, names))
            if args.out is not None:
                from trajformer.heads.plot import save_detections

                maps = None
                if args.attention:
                    single = collate([small]).to(device)
                    maps = attention_maps(
                        model, single.pixels, single.original, objects.first(MAX_MAPS)
                    )
                save_detections(
                    _free_file(args.out, path.stem, used), example, objects, names, maps, true=False
                )
    if args.out is not None:
        write_atomically(args.out / ROWS, "".join(lines))


def _score_detector(args: Namespace) -> None:
    """Print the average precision on a split; with --out, write it, the detections, and pictures of some images."""
    from trajformer.heads.detr.data import VocConfig, collate
    from trajformer.heads.detr.task import DetectionRecipe, average_precision, pair_with_labels

    folder = _other_folder(args, "Annotations/, ImageSets/Main/ and JPEGImages/")
    model, recipe, device = _load_model(args, DetectionRecipe)
    if folder:
        recipe = replace(recipe, data=replace(recipe.data, voc=VocConfig(root=folder)))
    check_outputs(args, out="folder")
    data, names, pairs, lines = recipe.load(args.split), recipe.names(), [], []
    for line in data.skipped:
        print(line)
    drawn = {round(index * (len(data) - 1) / (MAX_DRAWN - 1)) for index in range(MAX_DRAWN)}
    for first in tqdm(
        range(0, len(data), args.batch_size), desc=args.split, unit="batch", disable=not bars()
    ):
        numbers = range(first, min(first + args.batch_size, len(data)))
        examples = [data.example(number) for number in numbers]
        batch = collate(examples).to(device)
        predicted = _predict(model, batch, 0.0, args.nms)  # average precision uses all scores
        pairs += pair_with_labels(batch, predicted)
        for number, example, objects in zip(numbers, examples, predicted, strict=True):
            lines.append(_json_line(example.name, example.original, objects, names))
            if args.out is not None and number in drawn:
                from trajformer.heads.plot import save_detections

                shown = objects.first(int((objects.score > args.score).sum()))
                save_detections(args.out / f"{example.name}.png", example, shown, names, true=True)
    result = average_precision(pairs, names)
    print(f"{data.name}: {len(data)} images, {sum(len(true) for _, true in pairs)} objects")
    print("  ".join(f"{name} {value:.3f}" for name, value in result.items()))
    if args.out is not None:
        write_atomically(args.out / ROWS, "".join(lines))
        write_atomically(args.out / "average_precision.json", json.dumps(result, indent=1) + "\n")


def translate_parser() -> Parser:
    """--checkpoint CKPT FILE [--reference FILE] [--out FILE]."""
    parser = new_parser(
        "Translate a text file with one sentence per line. The translation is printed or written to --out. With a reference, "
        "BLEU and chrF by sacrebleu are printed with their signature."
    )
    parser.add_argument("file", type=Path, help="text, plain or .gz; - reads standard input")
    parser.add_argument("--out", type=Path, help="file for the translation")
    parser.add_argument(
        "--reference", type=Path, help="reference translation with the same number of lines"
    )
    parser.add_argument(
        "--beam", type=PositiveInt, default=5, help="hypotheses per step; 1 is greedy search"
    )
    parser.add_argument(
        "--length-penalty",
        type=NonNegativeFloat,
        default=0.6,
        help="larger values prefer longer translations",
    )
    parser.add_argument(
        "--attention", type=Path, metavar="DIR", help="folder for pictures of the cross-attention"
    )
    parser.add_argument(
        "--pictures",
        type=PositiveInt,
        default=4,
        help="number of sentences with a picture, from the first",
    )
    return _add_model_options(parser, 64, "sentences")


def run_translate(args: Namespace) -> None:
    """Translate a file line by line and print the translation or write it to --out; with a reference, print BLEU."""
    from trajformer.heads.translation import TranslationRecipe, read_lines, split_lines

    check_outputs(args, out="txt", attention="folder")
    model, _, _ = _load_model(args, TranslationRecipe)
    piped = str(args.file) == "-"
    sentences = split_lines(sys.stdin.read()) if piped else read_lines(args.file)
    if not sentences:
        raise TrajformerError(f"{args.file}: has no sentence")
    reference = None if args.reference is None else read_lines(args.reference)
    if reference is not None and len(reference) != len(sentences):
        raise TrajformerError(
            f"{args.reference}: has {len(reference)} lines, {args.file} has {len(sentences)}"
        )
    output = [""] * len(sentences)
    translations = model.translate(sentences, args.beam, args.length_penalty, args.batch_size)
    for index, text in tqdm(
        translations, total=len(sentences), unit="sentence", disable=not bars(), dynamic_ncols=True
    ):
        output[index] = text
    if args.out is not None:
        write_atomically(args.out, "".join(f"{text}\n" for text in output))
    elif reference is None:
        print("\n".join(output))
    if reference is not None:
        try:
            from sacrebleu.metrics import BLEU, CHRF
        except ModuleNotFoundError as error:
            raise TrajformerError(
                "--reference needs sacrebleu: pip install 'trajformer[heads]'"
            ) from error
        metrics = {"BLEU": BLEU(), "chrF": CHRF()}
        scores = {
            name: round(metric.corpus_score(output, [reference]).score, 2)
            for name, metric in metrics.items()
        }
        about = {"sentences": len(output), "signature": str(metrics["BLEU"].get_signature())}
        print(json.dumps(scores | about, ensure_ascii=False))
    if args.attention is not None:
        from trajformer.heads.plot import save_cross_attention

        drawn = [pair for pair in zip(sentences, output, strict=True) if all(pair)][: args.pictures]
        for number, (source, target) in enumerate(drawn, 1):
            path = args.attention / f"sentence_{number:03d}.png"
            save_cross_attention(path, model, source, target)
            print(path)
