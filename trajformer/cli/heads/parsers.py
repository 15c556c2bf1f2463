"""Options of the commands that use the reference heads."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, PositiveInt

from trajformer.cli.models import ACCELERATORS
from trajformer.cli.parsing import Parser, new_parser
from trajformer.errors import TrajformerError


def classify_parser() -> Parser:
    """--checkpoint CKPT (IMAGE_OR_FOLDER... [--out DIR] | --split SPLIT)."""
    parser = new_parser(
        "Name what pictures show, or score a classifier on a split of labelled ones. Without --split, IMAGES are pictures "
        "or folders of pictures; a table tells the most probable classes of each, and unreadable files are listed and "
        "skipped. With --split, the pictures of that split of the data the classifier was trained on are classified and "
        "compared with their labels."
    )
    parser.add_argument("images", nargs="*", type=Path, help="pictures or folders; with --split, the data set's own folder")
    parser.add_argument("--checkpoint", type=Path, required=True, help="of a run, or made by `trajformer weights convert`")
    parser.add_argument("--split", help="score this split (train, val, test) instead")
    parser.add_argument("--top", type=PositiveInt, default=3, help="so many classes a picture")
    parser.add_argument("--out", type=Path, help="folder for a PNG of each picture: its classes, and what they were read from")
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="pictures at a time")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="auto", help="auto = a GPU where there is one")
    return parser


def detect_parser() -> Parser:
    """--checkpoint CKPT (IMAGE_OR_FOLDER... [--out DIR] | [FOLDER] --split SPLIT)."""
    parser = new_parser(
        "Find objects in pictures, or score a detector on a split of labelled ones. Without --split, IMAGES are pictures or "
        "folders of pictures; the class, score and corners (left, top, right, bottom; pixels) of every object are printed, and "
        "unreadable files are listed and skipped. With --split, the objects of that split of the data the detector was trained "
        "on are found, and average precision as COCO defines it is printed, over all thresholds, at 0.5, and for each class."
    )
    parser.add_argument("images", nargs="*", type=Path, help="pictures or folders; with --split, a Pascal VOC folder of your own")
    parser.add_argument("--checkpoint", type=Path, required=True, help="of a run, or made by `trajformer weights convert`")
    parser.add_argument("--split", help="score this split (train, val, test) instead")
    parser.add_argument("--out", type=Path, help="folder for detections.jsonl, a line a picture, and PNG files")
    parser.add_argument("--score", type=ClosedUnitInterval, default=0.5, help="least score of an object that is told or drawn")
    parser.add_argument("--nms", action="store_true", help="merge what all decoder layers found, the surest of overlapping boxes")
    parser.add_argument("--attention", action="store_true", help="also draw what the surest objects were found by")
    parser.add_argument("--batch-size", type=PositiveInt, default=8, help="pictures at a time")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="auto", help="auto = a GPU where there is one")
    return parser


def weights_parser() -> Parser:
    """convert LAYOUT FILE OUT."""
    from trajformer.cli.convert import LAYOUTS, OWN

    parser = new_parser(
        "Convert published weights, or a checkpoint of a run, into one without the state of a run. Every tensor of FILE must "
        "find its place, and every parameter of the model its tensor; otherwise nothing is written."
    )
    parser.add_argument("action", choices=("convert",), help="what to do")
    summaries = {OWN: "a checkpoint of a run"} | {name: layout.summary for name, layout in LAYOUTS.items()}
    parser.add_argument("layout", choices=tuple(summaries), help="; ".join(f"{n}: {text}" for n, text in summaries.items()))
    parser.add_argument("file", type=Path, help=".safetensors, or .pt, .pth, .bin of plain tensors")
    parser.add_argument("out", type=Path, help="checkpoint to write; as safetensors if it ends in .safetensors")
    parser.add_argument("--heads", type=PositiveInt, help="attention heads, which no shape tells (default: the layout's own)")
    parser.add_argument("--labels", type=Path, help="text file with the classes' names, one a line, in the order of the outputs")
    return parser


def translate_parser() -> Parser:
    """--checkpoint CKPT FILE [--reference FILE] [--out FILE]."""
    parser = new_parser(
        "Translate a text file, one sentence a line. The translation goes to standard output or into --out; with a reference, "
        "BLEU and chrF by sacrebleu are printed with their signature."
    )
    parser.add_argument("file", type=Path, help="text, plain or .gz; - reads standard input")
    parser.add_argument("--checkpoint", type=Path, required=True, help="of a run, or made by `trajformer weights convert`")
    parser.add_argument("--out", type=Path, help="file for the translation")
    parser.add_argument("--reference", type=Path, help="the right translation, line by line, to score against")
    parser.add_argument("--beam", type=PositiveInt, default=5, help="hypotheses kept at each step; 1 is greedy")
    parser.add_argument("--length-penalty", type=NonNegativeFloat, default=0.6, help="larger prefers longer translations")
    parser.add_argument("--batch-size", type=PositiveInt, default=64, help="sentences at a time")
    parser.add_argument("--attention", type=Path, metavar="DIR", help="folder for pictures of what each token looked at")
    parser.add_argument("--pictures", type=PositiveInt, default=4, help="so many of them, of the first sentences")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="auto", help="auto = a GPU where there is one")
    return parser


def run_classify(args: Namespace) -> None:
    """`trajformer classify`."""
    from trajformer.cli.heads import classify

    options = {"accelerator": args.accelerator, "batch_size": args.batch_size}
    if args.split is not None:
        if args.out is not None:
            raise TrajformerError("--out is for pictures that are classified, not for --split")
        classify.score(args.checkpoint, args.images, args.split, **options)
    else:
        classify.classify(args.checkpoint, args.images, top=args.top, out=args.out, **options)


def run_detect(args: Namespace) -> None:
    """`trajformer detect`."""
    from trajformer.cli.heads import detect

    options = detect.Options(args.score, args.nms, args.attention, args.accelerator, args.batch_size)
    if args.split is not None:
        detect.score(args.checkpoint, args.images, args.split, args.out, options)
    else:
        detect.detect(args.checkpoint, args.images, args.out, options)


def run_weights(args: Namespace) -> None:
    """`trajformer weights`."""
    from trajformer.cli import weights

    weights.convert(args.layout, args.file, args.out, heads=args.heads, labels=args.labels)


def run_translate(args: Namespace) -> None:
    """`trajformer translate`."""
    from trajformer.cli.heads import translate
    from trajformer.heads.translation.translator import SearchConfig

    search = SearchConfig(args.beam, args.length_penalty, args.batch_size)
    files = {"out": args.out, "reference": args.reference, "accelerator": args.accelerator}
    pairs = translate.translate(args.checkpoint, args.file, search, **files)
    if args.attention is not None:
        drawn = [pair for pair in pairs if all(pair)][: args.pictures]
        for picture in translate.draw_attention(args.checkpoint, drawn, args.attention):
            print(picture)
