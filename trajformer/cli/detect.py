"""`trajformer detect`: objects in images, or the average precision of a detector on a split."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs
from trajformer.cli.heads import PictureNames, add_model, load_model, other_folder, read_batches
from trajformer.cli.parsing import Parser, UnitInterval, new_parser
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    from trajformer.heads.detr.data import DetectionBatch
    from trajformer.heads.detr.model import Detr
    from trajformer.heads.detr.objects import Objects

NMS_IOU = 0.7  # IoU threshold of --nms
MAX_DRAWN = 8  # number of images of a split that are drawn
MAX_MAPS = 3  # number of objects per image with attention maps
ROWS_FILE = "detections.jsonl"


def parser() -> Parser:
    """--checkpoint CKPT (IMAGE_OR_FOLDER... [--out DIR] | [FOLDER] --split SPLIT)."""
    made = new_parser(
        "Detect objects in images, or score a detector on a labeled split. Without --split, the "
        "class, score and corners (left, top, right, bottom; pixels) of each object are printed; "
        "unreadable files are listed and skipped. With --split, the average precision of COCO on "
        "this split of the training data is printed: mean over thresholds, at 0.5, and per class."
    )
    made.add_argument(
        "images",
        nargs="*",
        type=Path,
        help="images or folders; with --split, another Pascal VOC folder",
    )
    made.add_argument("--split", help="score this split (train, val, test)")
    made.add_argument(
        "--out", type=Path, help="folder for detections.jsonl (one line per image) and PNG files"
    )
    made.add_argument(
        "--score",
        type=UnitInterval,
        default=0.5,
        help="minimum score of printed and drawn objects",
    )
    made.add_argument(
        "--nms", action="store_true", help="join all decoder layers by non-maximum suppression"
    )
    made.add_argument(
        "--attention", action="store_true", help="also draw attention maps of the best objects"
    )
    add_model(made, 8, "images")
    return made


def run(args: Namespace) -> None:
    """Detect objects in images, or score a split."""
    if args.split is None:
        _detect(args)
    else:
        _score(args)


def _detect(args: Namespace) -> None:
    """Print the objects in each image, and write and draw them with --out."""
    from trajformer.heads.detr.data import collate, read_example, resize_example
    from trajformer.heads.detr.objects import attention_maps
    from trajformer.heads.detr.task import DetectionRecipe

    if args.attention and args.out is None:
        raise TrajformerError("--attention needs a folder for its pictures: --out DIR")
    model, recipe, device = load_model(args, DetectionRecipe)
    names = recipe.names()
    pictures = None if args.out is None else PictureNames(args.out)
    lines = []
    for batch in read_batches(args, read_example):
        resized = []
        for _, example in batch:
            resized.append(resize_example(example, recipe.data.shorter, recipe.data.longest))
        predicted = _predict(model, collate(resized).to(device), args.score, args.nms)
        for (path, example), small, objects in zip(batch, resized, predicted, strict=True):
            _print_objects(path, objects, names)
            lines.append(_json_line(str(path), example.original, objects, names))
            if pictures is None:
                continue
            from trajformer.heads.plot import save_detections

            maps = None
            if args.attention:
                single = collate([small]).to(device)
                best = objects.first(MAX_MAPS)
                maps = attention_maps(model, single.pixels, single.original, best)
            save_detections(pictures.new(path.stem), example, objects, names, maps, true=False)
    if args.out is not None:
        write_atomically(args.out / ROWS_FILE, "".join(lines))


def _print_objects(path: Path, objects: Objects, names: Sequence[str]) -> None:
    counts = Counter(names[label] for label in objects.label.tolist())
    summary = ", ".join(f"{number} {name}" for name, number in counts.most_common())
    print(f"{path}: {summary or 'no objects'}")
    width = max((len(name) for name in counts), default=0)
    for box, score, label in objects.rows():
        corners = " ".join(f"{corner:8.1f}" for corner in box)
        print(f"  {names[label]:<{width}} {score:.3f} {corners}")


def _predict(model: Detr, batch: DetectionBatch, score: float, nms: bool) -> list[Objects]:
    """Objects with a higher score in each image of a batch.

    They are on the CPU, with corners in pixels of the original image.
    """
    import torch

    from trajformer.heads.detr.objects import postprocess

    with torch.no_grad():
        detections = model(batch.pixels, batch.mask)
    threshold = NMS_IOU if nms else None
    objects_of_images = postprocess(detections, batch.original, score=score, nms=threshold)
    return [objects.to("cpu") for objects in objects_of_images]


def _json_line(image: str, size: tuple[int, int], objects: Objects, names: Sequence[str]) -> str:
    """A line of detections.jsonl. Boxes are left, top, right and bottom in pixels of the image."""
    rows = []
    for box, score, label in objects.rows():
        corners = [round(corner, 2) for corner in box]
        rows.append({"label": names[label], "score": round(score, 5), "box": corners})
    height, width = size
    return json.dumps({"image": image, "width": width, "height": height, "objects": rows}) + "\n"


def _score(args: Namespace) -> None:
    """Print the average precision on a split.

    With --out, also write it, the detections, and pictures of some images.
    """
    from trajformer.heads.detr.data import collate
    from trajformer.heads.detr.metrics import average_precision, pair_with_labels
    from trajformer.heads.detr.task import DetectionRecipe
    from trajformer.heads.detr.voc import VocConfig
    from trajformer.heads.images import summed_up

    folder = other_folder(args, "Annotations/, ImageSets/Main/ and JPEGImages/")
    model, recipe, device = load_model(args, DetectionRecipe)
    if folder:
        recipe = replace(recipe, data=replace(recipe.data, voc=VocConfig(root=folder)))
    check_outputs(args, out="folder")
    data = recipe.load(args.split)
    names = recipe.names()
    for line in summed_up(data.skipped):
        print(line)
    drawn = _spread(len(data), MAX_DRAWN) if args.out is not None else set()
    pairs = []
    lines = []
    starts = range(0, len(data), args.batch_size)
    for start in tqdm(starts, desc=args.split, unit="batch", disable=not bars()):
        indices = range(start, min(start + args.batch_size, len(data)))
        examples = [data.example(index) for index in indices]
        batch = collate(examples).to(device)
        predicted = _predict(model, batch, 0.0, args.nms)  # average precision uses all scores
        pairs += pair_with_labels(batch, predicted)
        for index, example, objects in zip(indices, examples, predicted, strict=True):
            lines.append(_json_line(example.name, example.original, objects, names))
            if index in drawn:
                from trajformer.heads.plot import save_detections

                shown = objects.first(int((objects.score > args.score).sum()))
                save_detections(args.out / f"{example.name}.png", example, shown, names, true=True)
    result = average_precision(pairs, names)
    num_objects = sum(len(true) for _, true in pairs)
    print(f"{data.name}: {len(data)} images, {num_objects} objects")
    print("  ".join(f"{name} {value:.3f}" for name, value in result.items()))
    if args.out is not None:
        write_atomically(args.out / ROWS_FILE, "".join(lines))
        write_atomically(args.out / "average_precision.json", json.dumps(result, indent=1) + "\n")


def _spread(total: int, count: int) -> set[int]:
    """Up to `count` indices below `total` at equal distances, with the first and the last one."""
    return {round(index * (total - 1) / (count - 1)) for index in range(count)}
