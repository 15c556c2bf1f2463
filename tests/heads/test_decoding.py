"""Beam search against exhaustive and greedy search, and decoding with a cache against without."""

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
    limits = torch.full((len(source),), limit)
    return [row.tolist() for row in beam_search(steps, limits, width, alpha)]


def exhaustive(
    model: Transformer, source: Tensor, tokens: int, limit: int, alpha: float
) -> list[int]:
    """The best of all finished translations of one sentence [S] with up to `limit` tokens."""
    words = [token for token in range(tokens) if token != END]
    candidates: list[tuple[int, ...]] = []
    for length in range(limit):
        for body in product(words, repeat=length):
            candidates.append((*body, END))

    lengths = torch.tensor([len(row) for row in candidates])
    target = torch.full((len(candidates), limit), PAD)
    for index, row in enumerate(candidates):
        target[index, : len(row)] = torch.tensor(row)
    start = torch.full((len(target), 1), START)
    given = torch.cat([start, target[:, :-1]], 1)
    with torch.no_grad():
        table = model(source.expand(len(target), -1), given).log_softmax(-1)
    log_probability = table.gather(-1, target[..., None])[..., 0]
    real = torch.arange(limit) < lengths[:, None]
    total = (log_probability * real).sum(1)
    best = (total / length_penalty(lengths, alpha)).argmax()
    return list(candidates[best][:-1])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_wide_beam_equals_exhaustive_search(alpha: float) -> None:
    tokens = 6
    limit = 4
    width = tokens ** (limit - 1)  # all hypotheses are kept
    source = sentences(3, 4, tokens)
    for seed in range(3):
        model = make_model(seed, tokens)
        expected = [exhaustive(model, row, tokens, limit, alpha) for row in source]
        assert search(model, source, limit, width, alpha) == expected


def without_padding(sentence: Tensor) -> Tensor:
    return sentence[sentence != PAD]


def greedy(model: Transformer, sentence: Tensor, limit: int) -> list[int]:
    """The most probable token at each step, for one sentence [S]."""
    tokens = [START]
    while len(tokens) <= limit and END not in tokens:
        with torch.no_grad():
            logits = model(sentence[None], torch.tensor([tokens]))
        tokens.append(int(logits[0, -1].argmax()))
    return [token for token in tokens[1:] if token != END]


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_of_one_is_greedy(alpha: float) -> None:
    model = make_model(5, 8)
    source = sentences(7, 5, 8)
    narrow = search(model, source, 9, 1, alpha)
    expected = [greedy(model, without_padding(row), 9) for row in source]
    assert narrow == expected
    assert len({len(row) for row in narrow}) > 1, "sentences should end at different steps"


@pytest.mark.parametrize("width", [1, 4])
def test_translations_do_not_depend_on_the_batch_or_the_cache(width: int) -> None:
    model = make_model(5, 12)
    source = sentences(6, 5, 12, seed=2)
    alone = []
    for row in source:
        alone += search(model, without_padding(row)[None], 9, width)
    assert search(model, source, 9, width) == alone
    assert search(model, source, 9, width, cached=False) == alone


def test_each_translation_stops_at_its_limit() -> None:
    model = make_model(5, 12)
    source = sentences(3, 5, 12)
    with torch.no_grad():  # the end token becomes improbable
        model.decoder.layers[-1].feedforward.norm.bias.fill_(5.0)
        model.projection.weight[END] = -9.0
    limit = torch.tensor([3, 7, 5])
    for width in (1, 2):
        translated = beam_search(Hypotheses(model, source, width), limit, width)
        assert [len(row) for row in translated] == [3, 7, 5]
