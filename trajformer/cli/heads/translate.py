"""`trajformer translate`: translations of a text, and their agreement with a reference."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeFloat, PositiveInt
from tqdm import tqdm

from trajformer.cli.files import bars, make_folder, make_room
from trajformer.cli.heads.model_inputs import add_model_options, load_model
from trajformer.cli.parsing import Parser, new_parser
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    from trajformer.heads.translation.decoding import SearchConfig, Translator


def translate_parser() -> Parser:
    """--checkpoint CKPT FILE [--reference FILE] [--out FILE]."""
    parser = new_parser(
        "Translate a text file with one sentence per line. The translation is printed or written to --out. With a reference, "
        "BLEU and chrF by sacrebleu are printed with their signature."
    )
    parser.add_argument("file", type=Path, help="text, plain or .gz; - reads standard input")
    parser.add_argument("--out", type=Path, help="file for the translation")
    parser.add_argument("--reference", type=Path, help="reference translation with the same number of lines")
    parser.add_argument("--beam", type=PositiveInt, default=5, help="hypotheses per step; 1 is greedy search")
    parser.add_argument("--length-penalty", type=NonNegativeFloat, default=0.6, help="larger values prefer longer translations")
    parser.add_argument("--attention", type=Path, metavar="DIR", help="folder for pictures of the cross-attention")
    parser.add_argument("--pictures", type=PositiveInt, default=4, help="number of sentences with a picture, from the first")
    add_model_options(parser, 64, "sentences")
    return parser


def run_translate(args: Namespace) -> None:
    """`trajformer translate`."""
    from trajformer.heads.translation.decoding import SearchConfig
    from trajformer.heads.translation.task import TranslationRecipe

    model, _, _ = load_model(args.checkpoint, TranslationRecipe, args.accelerator)
    search = SearchConfig(args.beam, args.length_penalty, args.batch_size)
    pairs = translate(model, args.file, search, out=args.out, reference=args.reference)
    if args.attention is not None:
        from trajformer.heads.translation.plot import save_cross_attention

        make_folder(args.attention)
        drawn = [pair for pair in pairs if all(pair)][: args.pictures]
        for number, (source, target) in enumerate(drawn, 1):
            path = args.attention / f"sentence_{number:03d}.png"
            save_cross_attention(path, model, source, target)
            print(path)


def read_text(file: Path) -> list[str]:
    """The sentences of a file, or of standard input for `-`.

    Raises:
        TrajformerError: the file cannot be read or has no sentences.
    """
    from trajformer.heads.translation.data import read_lines

    lines = [line.strip() for line in sys.stdin.read().splitlines()] if str(file) == "-" else read_lines(file)
    if not lines:
        raise TrajformerError(f"{file}: has no sentence")
    return lines


def score_translations(predicted: list[str], reference: list[str]) -> dict[str, float | str]:
    """BLEU and chrF of a text in 0..100, the number of sentences, and the signature of sacrebleu.

    Raises:
        TrajformerError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ModuleNotFoundError as error:
        raise TrajformerError("--reference needs sacrebleu: pip install 'trajformer[heads]'") from error
    bleu = BLEU()
    scores: dict[str, float | str] = {
        "BLEU": round(bleu.corpus_score(predicted, [reference]).score, 2),
        "chrF": round(CHRF().corpus_score(predicted, [reference]).score, 2),
    }
    return scores | {"sentences": len(predicted), "signature": str(bleu.get_signature())}


def translate(
    model: Translator, file: Path, search: SearchConfig, *, out: Path | None, reference: Path | None
) -> list[tuple[str, str]]:
    """Translate a file line by line and print the translation or write it to `out`; with a reference, print BLEU.

    Returns:
        Sentences and their translations.

    Raises:
        TrajformerError: a file cannot be read or written, or the reference has another number of lines.
    """
    sentences = read_text(file)
    expected = None if reference is None else read_text(reference)
    if expected is not None and len(expected) != len(sentences):
        raise TrajformerError(f"{reference}: has {len(expected)} lines, {file} has {len(sentences)}")
    make_room(out)
    output = [""] * len(sentences)
    with tqdm(total=len(sentences), unit="sentence", disable=not bars(), dynamic_ncols=True) as bar:
        for index, text in model.translate(sentences, search):
            output[index] = text
            bar.update()
    if out is not None:
        write_atomically(out, "".join(f"{text}\n" for text in output))
    elif expected is None:
        print("\n".join(output))
    if expected is not None:
        print(json.dumps(score_translations(output, expected), ensure_ascii=False))
    return list(zip(sentences, output, strict=True))
