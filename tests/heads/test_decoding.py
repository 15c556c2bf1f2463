"""Beam search against exhaustive and greedy search, and cached decoding against decoding the whole prefix each step."""

from itertools import product
from typing import Any

import pytest
import torch
from support.heads import sentences
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.heads.translation.decoding import Hypotheses, beam_search, length_penalty
from trajformer.heads.translation.model import Transformer, TransformerConfig
from trajformer.heads.translation.tokenizer import END, PAD, START

BLOCK = BlockConfig(width=16, heads=2, feedforward=32, dropout=0.1, norm_first=False)


def make_model(seed: int = 0, tokens: int = 6) -> Transformer:
    """A random translator with clearly different probabilities."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(tokens, tokens, BLOCK, (1, 2), tied="none"))
    torch.nn.init.normal_(model.projection.weight)
    return model.eval()


def search(
    model: Transformer,
    source: Tensor,
    limit: int,
    width: int,
    alpha: float = 0.6,
    cached: bool = True,
) -> list[Any]:
    """Translations by beam search, with the same limit for every sentence."""
    steps = Hypotheses(model, source, width, cached=cached)
    return [
        row.tolist() for row in beam_search(steps, torch.full((len(source),), limit), width, alpha)
    ]


def exhaustive(
    model: Transformer, source: Tensor, tokens: int, limit: int, alpha: float
) -> list[int]:
    """The best of all finished translations of one sentence [S] with up to `limit` tokens."""
    words = [token for token in range(tokens) if token != END]
    candidates = [(*body, END) for length in range(limit) for body in product(words, repeat=length)]
    target = torch.tensor([(*row, *[PAD] * (limit - len(row))) for row in candidates])
    given = torch.cat([torch.full((len(target), 1), START), target[:, :-1]], 1)
    with torch.no_grad():
        table = model(source.expand(len(target), -1), given).log_softmax(-1)
    length = torch.tensor([len(row) for row in candidates])
    log_probability = table.gather(-1, target[..., None])[..., 0] * (
        torch.arange(limit) < length[:, None]
    )
    best = (log_probability.sum(1) / length_penalty(length, alpha)).argmax()
    return list(candidates[best][:-1])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_wide_beam_equals_exhaustive_search(alpha: float) -> None:
    tokens, limit = 6, 4
    source = sentences(3, 4, tokens)
    for seed in range(3):
        model = make_model(seed, tokens)
        width = tokens ** (limit - 1)  # all hypotheses are kept
        assert search(model, source, limit, width, alpha) == [
            exhaustive(model, row, tokens, limit, alpha) for row in source
        ]


def greedy(model: Transformer, sentence: Tensor, limit: int) -> list[int]:
    """The most probable token at each step, for one sentence [S]."""
    tokens = [START]
    while len(tokens) <= limit and END not in tokens:
        with torch.no_grad():
            tokens.append(int(model(sentence[None], torch.tensor([tokens]))[0, -1].argmax()))
    return [token for token in tokens[1:] if token != END]


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_of_one_is_greedy(alpha: float) -> None:
    model, source = make_model(5, 8), sentences(7, 5, 8)
    narrow = search(model, source, 9, 1, alpha)
    assert narrow == [greedy(model, row[row != PAD], 9) for row in source]
    assert len({len(row) for row in narrow}) > 1, "sentences should end at different steps"


@pytest.mark.parametrize("width", [1, 4])
def test_translations_do_not_depend_on_the_batch_or_the_cache(width: int) -> None:
    model, source = make_model(5, 12), sentences(6, 5, 12, seed=2)
    alone = [search(model, row[row != PAD][None], 9, width)[0] for row in source]
    assert search(model, source, 9, width) == search(model, source, 9, width, cached=False) == alone


def test_each_translation_stops_at_its_limit() -> None:
    model, source = make_model(5, 12), sentences(3, 5, 12)
    with torch.no_grad():  # the end token becomes improbable
        model.decoder.layers[-1].feedforward.norm.bias.fill_(5.0)
        model.projection.weight[END] = -9.0
    limit = torch.tensor([3, 7, 5])
    for width in (1, 2):
        assert [
            len(row) for row in beam_search(Hypotheses(model, source, width), limit, width)
        ] == [3, 7, 5]
