"""Translating text, and how well that agrees with a reference."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from trajformer.cli.files import bars, make_folder, make_room
from trajformer.cli.run_models import Accelerator
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    from trajformer.heads.translation.translator import SearchConfig, Translator


def load(checkpoint: Path, accelerator: Accelerator) -> Translator:
    """The translator of a checkpoint, on its device.

    Raises:
        TrajformerError: it cannot be read, or is of another task.
    """
    from trajformer.heads.translation.task import TranslationRecipe
    from trajformer.heads.translation.translator import Translator
    from trajformer.recipes.checkpoint import load_checkpoint, pick_device

    model, _ = load_checkpoint(checkpoint, TranslationRecipe)
    assert isinstance(model, Translator)
    return model.to(pick_device(accelerator))


def read_text(file: Path) -> list[str]:
    """The sentences of a file, of standard input for `-`.

    Raises:
        TrajformerError: it cannot be read or has no sentence.
    """
    from trajformer.heads.translation.text import read_lines

    lines = [line.strip() for line in sys.stdin.read().splitlines()] if str(file) == "-" else read_lines(file)
    if not lines:
        raise TrajformerError(f"{file}: has no sentence")
    return lines


def translate(
    checkpoint: Path, file: Path, search: SearchConfig, *, out: Path | None, reference: Path | None, accelerator: Accelerator
) -> list[tuple[str, str]]:
    """Translate a file line by line, onto standard output or into `out`; with a reference, print BLEU.

    Returns:
        Sentences with their translations.

    Raises:
        TrajformerError: a file cannot be read or written, or the reference has another number of lines.
    """
    model, sentences = load(checkpoint, accelerator), read_text(file)
    wanted = None if reference is None else read_text(reference)
    if wanted is not None and len(wanted) != len(sentences):
        raise TrajformerError(f"{reference}: has {len(wanted)} lines, {file} has {len(sentences)}")
    make_room(out)
    found = [""] * len(sentences)
    with tqdm(total=len(sentences), unit="sentence", disable=not bars(), dynamic_ncols=True) as bar:
        for index, text in model.translate(sentences, search):
            found[index] = text
            bar.update()
    if out is not None:
        write_atomically(out, "".join(f"{text}\n" for text in found))
    elif wanted is None:
        print("\n".join(found))
    if wanted is not None:
        print(json.dumps(score(found, wanted), ensure_ascii=False))
    return list(zip(sentences, found, strict=True))


def score(found: list[str], wanted: list[str]) -> dict[str, float | str]:
    """BLEU and chrF of a whole text by sacrebleu, with the signature that says how.

    Raises:
        TrajformerError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ModuleNotFoundError as error:
        raise TrajformerError("--reference needs sacrebleu: pip install 'trajformer[heads]'") from error
    bleu, chrf = BLEU(), CHRF()
    figures: dict[str, float | str] = {
        "BLEU": round(bleu.corpus_score(found, [wanted]).score, 2),
        "chrF": round(chrf.corpus_score(found, [wanted]).score, 2),
    }
    return figures | {"sentences": len(found), "signature": str(bleu.get_signature())}


def draw_attention(checkpoint: Path, pairs: list[tuple[str, str]], folder: Path) -> list[Path]:
    """Pictures of what each token of a translation looked at: the last layer, mean over its heads."""
    from matplotlib.figure import Figure

    from trajformer.plotting.attention import draw_attention_matrix
    from trajformer.plotting.scene import save_figure

    model, pictures = load(checkpoint, "cpu"), []
    make_folder(folder)
    for number, (source, target) in enumerate(pairs, 1):
        rows, columns, weights = model.cross_attention(source, target)
        figure = Figure(figsize=(1.5 + 0.28 * len(columns), 1.5 + 0.28 * len(rows)), layout="constrained")
        draw_attention_matrix(figure.subplots(), weights[-1].mean(0).cpu().numpy(), rows, columns)
        pictures.append(folder / f"sentence_{number:03d}.png")
        save_figure(figure, pictures[-1])
    return pictures
