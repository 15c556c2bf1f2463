"""Finding objects in pictures, and how well that goes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajformer.cli.files import bars, make_folder
from trajformer.cli.run_models import Accelerator
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    import torch

    from trajformer.heads.detr.data.batch import DetectionBatch, Example
    from trajformer.heads.detr.model import AttentionMaps, Detr, Found
    from trajformer.heads.detr.task import DetectionRecipe

OVERLAP = 0.7  # beyond which two boxes of a class are one, with --nms
DRAWN = 8  # pictures of a split
STRONGEST = 3  # objects of a picture whose attention is drawn
ROWS = "detections.jsonl"


@dataclass(frozen=True)
class Options:
    """What is wanted of a detector.

    Attributes:
        score: least score of an object that is told or drawn.
        nms: merge what all decoder layers found.
        attention: draw attention maps, too.
        accelerator: where it runs.
        batch_size: pictures at a time.
    """

    score: float
    nms: bool
    attention: bool
    accelerator: Accelerator
    batch_size: int


def detect(checkpoint: Path, images: Sequence[Path], out: Path | None, options: Options) -> None:
    """Print the objects of every picture; where `out` is given, write them there and draw them; then list what was skipped.

    Raises:
        TrajformerError: there are no pictures, or none that can be read.
    """
    from trajformer.heads.detr.data.batch import collate
    from trajformer.heads.detr.data.vary import fit
    from trajformer.heads.detr.model import attention_maps
    from trajformer.heads.images import list_images

    if not images:
        raise TrajformerError("give pictures or folders, or --split SPLIT to score a split of labelled ones")
    if options.attention and out is None:
        raise TrajformerError("--attention wants a folder for its pictures: --out DIR")
    files = list_images(images)
    model, recipe, device = _load(checkpoint, options)
    names, skipped, results = recipe.names(), list[str](), _Results(out)
    for paths, examples in _batches(files, options.batch_size, skipped):
        seen = [fit(example, recipe.data.shorter, recipe.data.longest) for example in examples]
        for place, found in enumerate(_find(model, collate(seen).to(device), options)):
            print(f"{paths[place]}: {_count(found, names)}")
            for line in _lines(found, names):
                print(f"  {line}")
            results.add(str(paths[place]), examples[place], found, names)
            if out is not None:
                some = found.first(STRONGEST)
                alone = collate(seen[place : place + 1]).to(device)
                maps = attention_maps(model, alone.pixels, alone.original, some) if options.attention else None
                results.draw(examples[place], found, names, maps)
    results.write()
    for line in skipped:
        print(f"skipped {line}")
    if len(skipped) == len(files):
        raise TrajformerError(f"none of the {len(files)} pictures can be read")


def score(checkpoint: Path, images: Sequence[Path], split: str, out: Path | None, options: Options) -> dict[str, float]:
    """Find the objects of a split of labelled pictures, print average precision and return it.

    Args:
        out: gets average_precision.json, detections.jsonl, and some of the pictures with what was found and what is there.

    Raises:
        TrajformerError: the split cannot be used with this detector.
    """
    import torch
    from tqdm import tqdm

    from trajformer.heads.detr.data.voc import VocConfig
    from trajformer.heads.detr.metrics import average_precision, compare

    if len(images) > 1:
        raise TrajformerError("--split wants one folder at most, with Annotations/, ImageSets/Main/ and JPEGImages/ in it")
    model, recipe, device = _load(checkpoint, options)
    for folder in images:
        recipe = replace(recipe, data=replace(recipe.data, voc=VocConfig(root=str(folder))))
    data, names, results, pairs = recipe.load(split), recipe.names(), _Results(out), []
    for line in data.complaints:
        print(line)
    drawn = {round(index * (len(data) - 1) / (DRAWN - 1)) for index in range(DRAWN)} if out is not None else set()
    for numbers in tqdm(torch.arange(len(data)).split(options.batch_size), desc=split, unit="batch", disable=not bars()):
        batch = data[numbers.tolist()].to(device)
        every = _find(model, batch, replace(options, score=0.0))  # average precision is over all scores
        pairs += compare(batch, every)
        for number, found in zip(numbers.tolist(), every, strict=True):
            example = data.example(number)
            results.add(example.name, example, found, names)
            if number in drawn:
                results.draw(example, found.first(int((found.score > options.score).sum())), names, true=True)
    result = average_precision([pair[0] for pair in pairs], [pair[1] for pair in pairs], names)
    print(f"{data.name}: {len(data)} pictures, {sum(len(true.label) for _, true in pairs)} objects")
    print("  ".join(f"{name} {value:.3f}" for name, value in result.items()))
    results.write(result)
    return result


def _load(checkpoint: Path, options: Options) -> tuple[Detr, DetectionRecipe, torch.device]:
    from trajformer.heads.detr.model import Detr
    from trajformer.heads.detr.task import DetectionRecipe
    from trajformer.recipes.checkpoint import load_checkpoint, pick_device

    device = pick_device(options.accelerator)
    model, recipe = load_checkpoint(checkpoint, DetectionRecipe)
    assert isinstance(model, Detr)
    return model.to(device), recipe, device


def _batches(files: Sequence[Path], size: int, skipped: list[str]) -> Iterator[tuple[list[Path], list[Example]]]:
    """Paths and pictures as they are; complaints go to `skipped`."""
    import torch

    from trajformer.heads.detr.data.batch import Example
    from trajformer.heads.images import read_image

    for first in range(0, len(files), size):
        paths, examples = [], []
        for path in files[first : first + size]:
            try:
                image = read_image(path)
            except TrajformerError as error:
                skipped.append(" ".join(str(error).split()))
                continue
            shape = (image.shape[1], image.shape[2])
            examples.append(Example(path.stem, image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), shape))
            paths.append(path)
        if paths:
            yield paths, examples


def _find(model: Detr, batch: DetectionBatch, options: Options) -> list[Found]:
    """The objects of each picture of a batch, in pixels of the original, on the CPU."""
    import torch

    from trajformer.heads.detr.model import find

    with torch.no_grad():
        detections = model(batch.pixels, batch.mask)
    found = find(detections, batch.original, score=options.score, merge=OVERLAP if options.nms else None)
    return [one.cpu() for one in found]


def _count(found: Found, names: Sequence[str]) -> str:
    counts = Counter(names[label] for label in found.label.tolist())
    return ", ".join(f"{number} {name}" for name, number in counts.most_common()) or "nothing found"


def _lines(found: Found, names: Sequence[str]) -> Iterator[str]:
    width = max((len(names[label]) for label in found.label.tolist()), default=0)
    for box, sure, label in found.rows():
        yield f"{names[label]:<{width}} {sure:.3f} " + " ".join(f"{value:8.1f}" for value in box)


@dataclass(frozen=True, eq=False)
class _Results:
    """What goes into a folder; nothing does without one."""

    out: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.out is not None:
            make_folder(self.out)

    def add(self, image: str, example: Example, found: Found, names: Sequence[str]) -> None:
        """Note a line: boxes are left, top, right and bottom in pixels of the picture as it is on disk."""
        objects = [
            {"label": names[label], "score": round(sure, 5), "box": [round(value, 2) for value in box]}
            for box, sure, label in found.rows()
        ]
        height, width = example.original
        self.rows.append({"image": image, "width": width, "height": height, "objects": objects})

    def draw(
        self, example: Example, found: Found, names: Sequence[str], maps: AttentionMaps | None = None, *, true: bool = False
    ) -> None:
        """Write `<name>.png`: what was found, with attention where there is some, and what is there."""
        from trajformer.heads.detr.plot import save_detections

        assert self.out is not None
        number, name = 1, f"{example.name}.png"
        while name in self.taken:
            number += 1
            name = f"{example.name}-{number}.png"
        self.taken.add(name)
        save_detections(self.out / name, example, found, names, maps, true=true)

    def write(self, result: dict[str, float] | None = None) -> None:
        """Write detections.jsonl, and average precision where it is known."""
        if self.out is not None:
            write_atomically(self.out / ROWS, "".join(json.dumps(row) + "\n" for row in self.rows))
            if result is not None:
                write_atomically(self.out / "average_precision.json", json.dumps(result, indent=1) + "\n")
