"""BLEU and chrF of translations by sacrebleu."""

from __future__ import annotations

from trajformer.errors import TrajformerError


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
