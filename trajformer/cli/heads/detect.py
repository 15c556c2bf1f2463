"""`trajformer detect`: objects in images, and the average precision on a labeled split."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from jsonargparse.typing import ClosedUnitInterval

from trajformer.cli.files import bars, make_folder
from trajformer.cli.heads.model_inputs import add_model_options, list_inputs, load_model, read_batches, unique_name
from trajformer.cli.parsing import Accelerator, Parser, new_parser
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    from trajformer.heads.detr.data import DetectionBatch, Example
    from trajformer.heads.detr.model import AttentionMaps, Detr, Objects

NMS_IOU = 0.7  # IoU threshold of --nms
MAX_DRAWN = 8  # number of images of a split that are drawn
MAX_MAPS = 3  # number of objects per image with attention maps
ROWS = "detections.jsonl"


def detect_parser() -> Parser:
    """--checkpoint CKPT (IMAGE_OR_FOLDER... [--out DIR] | [FOLDER] --split SPLIT)."""
    parser = new_parser(
        "Detect objects in images, or score a detector on a labeled split. Without --split, the class, score and corners (left, "
        "top, right, bottom; pixels) of each object are printed; unreadable files are listed and skipped. With --split, the "
        "average precision of COCO on this split of the training data is printed: mean over thresholds, at 0.5, and per class."
    )
    parser.add_argument("images", nargs="*", type=Path, help="images or folders; with --split, another Pascal VOC folder")
    parser.add_argument("--split", help="score this split (train, val, test)")
    parser.add_argument("--out", type=Path, help="folder for detections.jsonl (one line per image) and PNG files")
    parser.add_argument("--score", type=ClosedUnitInterval, default=0.5, help="minimum score of printed and drawn objects")
    parser.add_argument("--nms", action="store_true", help="join all decoder layers by non-maximum suppression")
    parser.add_argument("--attention", action="store_true", help="also draw attention maps of the best objects")
    add_model_options(parser, 8, "images")
    return parser


@dataclass(frozen=True)
class Options:
    """Options of the command.

    Attributes:
        score: minimum score of printed and drawn objects.
        nms: join all decoder layers by non-maximum suppression.
        attention: draw attention maps, too.
        accelerator: the device.
        batch_size: images per batch.
    """

    score: float
    nms: bool
    attention: bool
    accelerator: Accelerator
    batch_size: int


def run_detect(args: Namespace) -> None:
    """`trajformer detect`."""
    options = Options(args.score, args.nms, args.attention, args.accelerator, args.batch_size)
    if args.split is not None:
        score(args.checkpoint, args.images, args.split, args.out, options)
    else:
        detect(args.checkpoint, args.images, args.out, options)


def detect(checkpoint: Path, images: Sequence[Path], out: Path | None, options: Options) -> None:
    """Print the objects in each image; with `out`, also write and draw them.

    Raises:
        TrajformerError: there are no images, or none can be read.
    """
    from trajformer.heads.detr.data import collate, resize_example
    from trajformer.heads.detr.model import attention_maps
    from trajformer.heads.detr.task import DetectionRecipe

    files = list_inputs(images)
    if options.attention and out is None:
        raise TrajformerError("--attention needs a folder for its pictures: --out DIR")
    model, recipe, device = load_model(checkpoint, DetectionRecipe, options.accelerator)
    names, results = recipe.names(), _Results(out)
    for paths, examples in read_batches(files, _read_example, options.batch_size):
        resized = [resize_example(example, recipe.data.shorter, recipe.data.longest) for example in examples]
        for index, objects in enumerate(_predict(model, collate(resized).to(device), options)):
            counts = Counter(names[label] for label in objects.label.tolist())
            summary = ", ".join(f"{number} {name}" for name, number in counts.most_common())
            print(f"{paths[index]}: {summary or 'no objects'}")
            width = max((len(name) for name in counts), default=0)
            for box, value, label in objects.rows():
                print(f"  {names[label]:<{width}} {value:.3f} " + " ".join(f"{corner:8.1f}" for corner in box))
            results.add(str(paths[index]), examples[index], objects, names)
            if out is not None:
                maps = None
                if options.attention:
                    single = collate(resized[index : index + 1]).to(device)
                    maps = attention_maps(model, single.pixels, single.original, objects.first(MAX_MAPS))
                results.draw(examples[index], objects, names, maps)
    results.write()


def score(checkpoint: Path, images: Sequence[Path], split: str, out: Path | None, options: Options) -> dict[str, float]:
    """Detect the objects of a labeled split, print the average precision and return it.

    Args:
        checkpoint: the detector.
        images: at most one Pascal VOC folder; by default the data of the recipe.
        split: name of the split.
        out: folder for average_precision.json, detections.jsonl, and pictures of some images with detections and labels.
        options: options of the command.

    Raises:
        TrajformerError: the split cannot be used with this detector.
    """
    import torch
    from tqdm import tqdm

    from trajformer.heads.detr.metrics import average_precision, pair_with_labels
    from trajformer.heads.detr.task import DetectionRecipe
    from trajformer.heads.detr.voc import VocConfig

    if len(images) > 1:
        raise TrajformerError("--split takes one folder at most, with Annotations/, ImageSets/Main/ and JPEGImages/ in it")
    model, recipe, device = load_model(checkpoint, DetectionRecipe, options.accelerator)
    for folder in images:
        recipe = replace(recipe, data=replace(recipe.data, voc=VocConfig(root=str(folder))))
    data, names, results, pairs = recipe.load(split), recipe.names(), _Results(out), []
    for line in data.skipped:
        print(line)
    drawn: set[int] = set()
    if out is not None:
        drawn = {round(index * (len(data) - 1) / (MAX_DRAWN - 1)) for index in range(MAX_DRAWN)}
    for numbers in tqdm(torch.arange(len(data)).split(options.batch_size), desc=split, unit="batch", disable=not bars()):
        batch = data[numbers.tolist()].to(device)
        predicted = _predict(model, batch, replace(options, score=0.0))  # average precision uses all scores
        pairs += pair_with_labels(batch, predicted)
        for number, objects in zip(numbers.tolist(), predicted, strict=True):
            example = data.example(number)
            results.add(example.name, example, objects, names)
            if number in drawn:
                results.draw(example, objects.first(int((objects.score > options.score).sum())), names, true=True)
    result = average_precision([pair[0] for pair in pairs], [pair[1] for pair in pairs], names)
    print(f"{data.name}: {len(data)} images, {sum(len(true.label) for _, true in pairs)} objects")
    print("  ".join(f"{name} {value:.3f}" for name, value in result.items()))
    results.write(result)
    return result


def _read_example(path: Path) -> Example:
    """An image file as an example without boxes."""
    import torch

    from trajformer.heads.detr.data import Example
    from trajformer.heads.images import read_image

    image = read_image(path)
    size = (image.shape[1], image.shape[2])
    return Example(path.stem, image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), size)


def _predict(model: Detr, batch: DetectionBatch, options: Options) -> list[Objects]:
    """Objects of each image of a batch, in pixels of the original image, on the CPU."""
    import torch

    from trajformer.heads.detr.model import postprocess

    with torch.no_grad():
        detections = model(batch.pixels, batch.mask)
    results = postprocess(detections, batch.original, score=options.score, nms=NMS_IOU if options.nms else None)
    return [objects.cpu() for objects in results]


@dataclass(frozen=True, eq=False)
class _Results:
    """Writer of the output folder; it does nothing without a folder."""

    out: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.out is not None:
            make_folder(self.out)

    def add(self, image: str, example: Example, objects: Objects, names: Sequence[str]) -> None:
        """Add a line of detections.jsonl: boxes are left, top, right and bottom in pixels of the original image."""
        rows = [
            {"label": names[label], "score": round(value, 5), "box": [round(corner, 2) for corner in box]}
            for box, value, label in objects.rows()
        ]
        height, width = example.original
        self.rows.append({"image": image, "width": width, "height": height, "objects": rows})

    def draw(
        self, example: Example, objects: Objects, names: Sequence[str], maps: AttentionMaps | None = None, *, true: bool = False
    ) -> None:
        """Write `<name>.png`, see `save_detections`."""
        from trajformer.heads.detr.plot import save_detections

        assert self.out is not None
        save_detections(self.out / unique_name(example.name, self.used), example, objects, names, maps, true=true)

    def write(self, result: dict[str, float] | None = None) -> None:
        """Write detections.jsonl, and average_precision.json if there is a result."""
        if self.out is not None:
            write_atomically(self.out / ROWS, "".join(json.dumps(row) + "\n" for row in self.rows))
            if result is not None:
                write_atomically(self.out / "average_precision.json", json.dumps(result, indent=1) + "\n")
