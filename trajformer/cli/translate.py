"""`trajformer translate`: a translation of a text file, with scores if there is a reference."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from trajformer.cli.files import bars, check_outputs
from trajformer.cli.heads import add_model, load_model
from trajformer.cli.parsing import Beam, NonNegativeFloat, Parser, PositiveInt, new_parser
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically


def parser() -> Parser:
    """--checkpoint CKPT FILE [--reference FILE] [--out FILE]."""
    made = new_parser(
        "Translate a text file with one sentence per line. The translation is printed or written "
        "to --out. With a reference, BLEU and chrF by sacrebleu are printed with their signature."
    )
    made.add_argument("file", type=Path, help="text, plain or .gz; - reads standard input")
    made.add_argument("--out", type=Path, help="file for the translation")
    made.add_argument(
        "--reference", type=Path, help="reference translation with the same number of lines"
    )
    made.add_argument(
        "--beam", type=Beam, default=5, help="hypotheses per step; 1 is greedy search"
    )
    made.add_argument(
        "--length-penalty",
        type=NonNegativeFloat,
        default=0.6,
        help="larger values prefer longer translations",
    )
    made.add_argument(
        "--attention", type=Path, metavar="DIR", help="folder for pictures of the cross-attention"
    )
    made.add_argument(
        "--pictures",
        type=PositiveInt,
        default=4,
        help="number of sentences with a picture, from the first",
    )
    add_model(made, 64, "sentences")
    return made


def run(args: Namespace) -> None:
    """Translate a file line by line, and print or write the translation, or print its scores."""
    from trajformer.heads.translation.data import read_lines
    from trajformer.heads.translation.task import TranslationRecipe

    check_outputs(args, out="txt", attention="folder")
    model, _, _ = load_model(args, TranslationRecipe)
    sentences = _read_sentences(args.file)
    if not sentences:
        raise TrajformerError(f"{args.file}: has no sentence")
    reference = None if args.reference is None else read_lines(args.reference)
    if reference is not None and len(reference) != len(sentences):
        lengths = f"has {len(reference)} lines, {args.file} has {len(sentences)}"
        raise TrajformerError(f"{args.reference}: {lengths}")

    translated = _translate(model, sentences, args)
    if args.out is not None:
        write_atomically(args.out, "".join(f"{text}\n" for text in translated))
    elif reference is None:
        print("\n".join(translated))
    if reference is not None:
        _print_scores(translated, reference)
    if args.attention is not None:
        pairs = [pair for pair in zip(sentences, translated, strict=True) if all(pair)]
        _save_pictures(model, pairs[: args.pictures], args.attention)


def _read_sentences(path: Path) -> list[str]:
    """The sentences in a text file, or in standard input if the path is "-"."""
    from trajformer.heads.translation.data import read_lines, split_lines

    if str(path) == "-":
        return split_lines(sys.stdin.read())
    return read_lines(path)


def _translate(model: Any, sentences: Sequence[str], args: Namespace) -> list[str]:
    """The translation of each sentence. The model returns them in another order."""
    translated = [""] * len(sentences)
    results = model.translate(sentences, args.beam, args.length_penalty, args.batch_size)
    bar = tqdm(
        results, total=len(sentences), unit="sentence", disable=not bars(), dynamic_ncols=True
    )
    for index, text in bar:
        translated[index] = text
    return translated


def _print_scores(translated: list[str], reference: list[str]) -> None:
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ModuleNotFoundError as error:
        hint = "pip install 'trajformer[heads]'"
        raise TrajformerError(f"--reference needs sacrebleu: {hint}") from error
    bleu = BLEU()
    result = {
        "BLEU": round(bleu.corpus_score(translated, [reference]).score, 2),
        "chrF": round(CHRF().corpus_score(translated, [reference]).score, 2),
        "sentences": len(translated),
        "signature": str(bleu.get_signature()),
    }
    print(json.dumps(result, ensure_ascii=False))


def _save_pictures(model: Any, pairs: Sequence[tuple[str, str]], folder: Path) -> None:
    """Draw the cross-attention of pairs of a sentence and its translation, and print the files."""
    from trajformer.heads.plot import save_cross_attention

    for number, (source, target) in enumerate(pairs, 1):
        path = folder / f"sentence_{number:03d}.png"
        save_cross_attention(path, model, source, target)
        print(path)
