"""The Transformer, its loss, the tokenizer and parallel text.

The Transformer equals PyTorch's and that of `attention-is-all-you-need-pytorch`.
"""

import re
from pathlib import Path
from typing import Literal

import pytest
import torch
from support.heads import corpus, sentences, tolerance
from support.tensors import randomize
from torch import Tensor, nn

from trajformer.cli.weights import convert
from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import TORCH_LAYERS, Options, StateDictReader
from trajformer.errors import TrajformerError
from trajformer.heads.translation.data import Pairs, read_lines, read_pairs
from trajformer.heads.translation.model import Transformer, TransformerConfig
from trajformer.heads.translation.task import TranslationRecipe, token_loss
from trajformer.heads.translation.tokenizer import (
    END,
    PAD,
    START,
    UNKNOWN,
    learn_tokenizer,
    load_tokenizer,
)
from trajformer.heads.translation.translator import Translator
from trajformer.recipes.checkpoint import load_checkpoint, write_checkpoint

TOKENS = 30
WIDTH = 32
HEADS = 4
INNER = 48


def torch_transformer(layers: tuple[int, int], norm_first: bool, eps: float) -> nn.Transformer:
    """A random transformer of PyTorch without dropout."""
    torch.manual_seed(0)
    sizes = (WIDTH, HEADS, *layers, INNER, 0.0)
    options = {"batch_first": True, "norm_first": norm_first, "layer_norm_eps": eps}
    return randomize(nn.Transformer(*sizes, **options))


def with_positions(embedding: Tensor) -> Tensor:
    """Embedded tokens [B, L, D] plus sinusoidal positions."""
    return embedding + sinusoid(torch.arange(embedding.shape[1]).float(), WIDTH)


def features(
    reference: nn.Transformer, embedded_source: Tensor, embedded_target: Tensor, source: Tensor
) -> Tensor:
    """The output of PyTorch's transformer for embedded source and target sentences."""
    causal = nn.Transformer.generate_square_subsequent_mask(embedded_target.shape[1]).isinf()
    return reference(
        embedded_source,
        embedded_target,
        tgt_mask=causal,
        src_key_padding_mask=source == PAD,
        memory_key_padding_mask=source == PAD,
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_equals_torch_nn_transformer_in_outputs_and_gradients(norm_first: bool) -> None:
    reference = torch_transformer((2, 3), norm_first, eps=1e-5)
    block = BlockConfig(WIDTH, HEADS, INNER, dropout=0.0, norm_first=norm_first)
    config = TransformerConfig(
        TOKENS, TOKENS, block, (2, 3), tied="none", scale="none", final_norm=True
    )
    model = Transformer(config)
    known = {}  # PyTorch's transformer has neither embeddings nor a projection
    for name, tensor in model.state_dict().items():
        if not name.startswith(("encoder", "decoder")):
            known[name] = tensor
    reader = StateDictReader(reference.state_dict(), "reference")
    model.load_state_dict(reader.take_model(lambda: model, TORCH_LAYERS, known))

    source = sentences(5, 7, TOKENS)
    target = sentences(5, 6, TOKENS, seed=1)
    real = target != PAD
    embedded_source = with_positions(model.source.token(source)).detach()
    embedded_target = with_positions(model.target.token(target)).detach()
    expected = features(reference, embedded_source, embedded_target, source)[real]
    output = model.decode(target, *model.encode(source))[real]
    torch.testing.assert_close(output, expected, **tolerance(30, INNER))

    expected.square().sum().backward()
    output.square().sum().backward()
    pairs = {
        "encoder.layers.0.feedforward.sublayer.0.weight": "encoder.layers.0.linear1.weight",
        "decoder.layers.2.cross_attention.norm.weight": "decoder.layers.2.norm2.weight",
        "decoder.layers.0.self_attention.sublayer.out.weight": (
            "decoder.layers.0.self_attn.out_proj.weight"
        ),
    }
    for name, reference_name in pairs.items():
        gradient = model.get_parameter(name).grad
        expected_gradient = reference.get_parameter(reference_name).grad
        limits = tolerance(60, INNER, 10.0)
        torch.testing.assert_close(gradient, expected_gradient, **limits)


OFFICIAL_NAMES = {
    r"multihead_attn\.": "enc_attn.",
    r"self_attn\.": "slf_attn.",
    r"out_proj\.": "fc.",
    r"linear(\d)": r"pos_ffn.w_\1",
    r"layers\.": "layer_stack.",
    r"norm1": "slf_attn.layer_norm",
    r"(encoder\S*)norm2": r"\1pos_ffn.layer_norm",
    r"(decoder\S*)norm2": r"\1enc_attn.layer_norm",
    r"norm3": "pos_ffn.layer_norm",
}


def official(reference: nn.Transformer, table: Tensor) -> dict[str, Tensor]:
    """Weights of PyTorch's transformer in the layout of `attention-is-all-you-need-pytorch`.

    That code has fewer biases.
    """
    positions = sinusoid(torch.arange(20.0), WIDTH)[None]
    state = {
        "trg_word_prj.weight": table,
        "encoder.src_word_emb.weight": table,
        "decoder.trg_word_emb.weight": table,
    }
    for stack in ("encoder", "decoder"):
        state[f"{stack}.position_enc.pos_table"] = positions
        state[f"{stack}.layer_norm.weight"] = torch.ones(WIDTH)
        state[f"{stack}.layer_norm.bias"] = torch.zeros(WIDTH)
    for name, tensor in reference.state_dict().items():
        for pattern, replacement in OFFICIAL_NAMES.items():
            name = re.sub(pattern, replacement, name)
        if name.endswith("in_proj_weight"):
            prefix = name.removesuffix("in_proj_weight")
            query, key, value = tensor.chunk(3)
            state[f"{prefix}w_qs.weight"] = query
            state[f"{prefix}w_ks.weight"] = key
            state[f"{prefix}w_vs.weight"] = value
        elif not name.endswith(("in_proj_bias", "fc.bias")):
            state[name] = tensor
    return state


def test_published_weights_give_the_published_logits(tmp_path: Path) -> None:
    reference = torch_transformer((2, 2), norm_first=False, eps=1e-6).eval()
    reference.encoder.norm = None
    reference.decoder.norm = None
    for name, parameter in reference.named_parameters():
        if name.endswith(("in_proj_bias", "out_proj.bias")):
            nn.init.zeros_(parameter)
    foreign_table = torch.randn(TOKENS, WIDTH) * 0.3
    torch.save(official(reference, foreign_table), tmp_path / "official.pt")

    layout = "attention_is_all_you_need"
    recipe, weights, _ = convert(layout, tmp_path / "official.pt", Options(heads=HEADS))
    write_checkpoint(tmp_path / "converted.ckpt", recipe, weights)
    model, loaded = load_checkpoint(tmp_path / "converted.ckpt", TranslationRecipe)
    assert loaded.model.block.d_k == 8
    assert loaded.model.block.d_v == 8
    assert loaded.model.tied == "all"

    # The foreign numbers of padding, start, end and unknown.
    table = torch.cat([foreign_table[[1, 2, 3, 0]], foreign_table[4:]])

    def embed(tokens: Tensor) -> Tensor:
        return nn.functional.layer_norm(with_positions(table[tokens]), (WIDTH,), eps=1e-6)

    source = sentences(4, 8, TOKENS)
    target = sentences(4, 6, TOKENS, seed=1)
    real = target != PAD
    output = features(reference, embed(source), embed(target), source)
    expected = output @ table.T * WIDTH**-0.5
    predicted = model(source, target)
    torch.testing.assert_close(predicted[real], expected[real], **tolerance(30, INNER))


@pytest.mark.parametrize(
    ("scale", "embedding_factor", "logit_factor"),
    [
        ("none", 1.0, 1.0),
        ("embedding", WIDTH**0.5, 1.0),
        ("projection", 1.0, WIDTH**-0.5),
    ],
)
def test_tied_weights_are_one_parameter_scaled_on_one_side(
    scale: Literal["none", "embedding", "projection"], embedding_factor: float, logit_factor: float
) -> None:
    block = BlockConfig(WIDTH, HEADS, INNER, dropout=0.0)
    model = Transformer(TransformerConfig(TOKENS, TOKENS, block, (1, 1), scale=scale))
    table = model.projection.weight
    assert model.source.token.weight is table
    assert model.target.token.weight is table

    x = torch.randn(2, WIDTH)
    torch.testing.assert_close(model.project(x), x @ table.T * logit_factor)

    tokens = torch.tensor([[4, 5]])
    embedded = model.source(tokens) - sinusoid(torch.arange(2.0), WIDTH)
    expected = table[tokens] * embedding_factor
    torch.testing.assert_close(embedded, expected, **tolerance(30, INNER))


def add_empty_sentence(tokens: Tensor) -> Tensor:
    """Append a row of padding."""
    return torch.cat([tokens, torch.full((1, tokens.shape[1]), PAD)])


@pytest.mark.parametrize(
    ("dtype", "atol"),
    [(torch.float32, 1e-6), (torch.bfloat16, 3e-2), (torch.float16, 3e-2)],
)
def test_padding_does_not_change_other_sentences_and_gradients_are_finite(
    dtype: torch.dtype, atol: float
) -> None:
    torch.manual_seed(0)
    block = BlockConfig(WIDTH, HEADS, INNER, dropout=0.0, norm_first=False)
    model = Transformer(TransformerConfig(TOKENS, TOKENS, block, (2, 2))).to(dtype)
    source = sentences(3, 6, TOKENS)
    target = sentences(3, 5, TOKENS, seed=1)
    padded_source = nn.functional.pad(add_empty_sentence(source), (0, 4), value=PAD)
    padded_target = add_empty_sentence(target)
    logits = model(padded_source, padded_target)
    torch.testing.assert_close(logits[:3], model(source, target), atol=atol, rtol=1e-2)

    real = padded_target != PAD
    loss = token_loss(logits[real], padded_target[real])
    loss = loss + logits[3].float().square().mean()
    loss.backward()
    assert loss.isfinite()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_label_smoothing_is_distributed_over_the_wrong_tokens() -> None:
    logits = torch.randn(6, 9)
    target = torch.tensor([0, 3, 8, 2, 2, 5])
    smoothing = 0.1
    wrong = torch.full((6, 9), smoothing / 8)
    probability = wrong.scatter(1, target[:, None], 1 - smoothing)
    expected = -(probability * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(token_loss(logits, target, smoothing), expected)
    unsmoothed = nn.functional.cross_entropy(logits, target)
    torch.testing.assert_close(token_loss(logits, target, 0.0), unsmoothed)


def test_the_tokenizer_is_reversible_and_stored_as_bytes() -> None:
    model = learn_tokenizer(corpus(), 80).serialized_model_proto()
    assert model == learn_tokenizer(corpus(), 80).serialized_model_proto()
    tokenizer = load_tokenizer(model)
    assert len(tokenizer) == 80
    texts = ["the dog sings in the park.", "Grün sleeps ÄÖÜ.", ""]
    tokens = tokenizer.encode(texts)
    assert tokenizer.decode(tokens) == texts
    assert tokens[2] == []
    for row in tokens:
        assert all(token > UNKNOWN for token in row)
    pieces = "".join(tokenizer.id_to_piece(tokens[0]))
    assert pieces.replace("▁", " ").strip() == texts[0]


def test_unusable_tokenizers_are_errors() -> None:
    with pytest.raises(TrajformerError, match="not a sentencepiece model"):
        load_tokenizer(b"nonsense")
    with pytest.raises(TrajformerError, match=r"data\.vocabulary: 100000"):
        learn_tokenizer(corpus(), 100_000)


def test_pairs_that_are_too_long_or_empty_are_left_out_and_counted() -> None:
    tokenizer = learn_tokenizer(corpus(), 80)
    source = ["a man runs here.", "", "the dog " * 40, "Grün sings ÄÖÜ."]
    target = ["the dog sings.", "here.", "a man", "runs"]
    assert len(Pairs("x", (source, target), tokenizer, None)) == 4
    pairs = Pairs("x", (source, target), tokenizer, 20)
    assert len(pairs) == 2
    assert pairs.left_out == 2
    lengths = [[len(pair.source), len(pair.target)] for pair in pairs.pairs]
    assert pairs.sizes(torch.arange(2).numpy()).tolist() == lengths

    batch = pairs[[1, 0]]
    assert batch.text == ("runs", "the dog sings.")
    assert (batch.target[:, 0] == START).all()
    assert batch.target[0, -1] == PAD
    decoded = []
    for row in batch.target.tolist():
        decoded.append(tokenizer.decode(row[1 : row.index(END)]))
    assert decoded == list(batch.text)


def test_invalid_text_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("eins\nzwei\n")
    with pytest.raises(TrajformerError, match=r"train\.en: no such file"):
        read_pairs(tmp_path, "train", "de", "en")
    (tmp_path / "train.en").write_text("one\n")
    with pytest.raises(TrajformerError, match="2 and 1 lines"):
        read_pairs(tmp_path, "train", "de", "en")
    (tmp_path / "cut.gz").write_bytes(b"\x1f\x8b\x08\x00cut")
    (tmp_path / "latin").write_bytes("größer".encode("latin-1"))
    for name, reason in {"cut.gz": "cannot be read: a dam", "latin": "not UTF-8 text"}.items():
        with pytest.raises(TrajformerError, match=f"{name}: {reason}"):
            read_lines(tmp_path / name)


def test_blank_lines_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "blank").write_text("one\n\nthree\n")
    assert read_lines(tmp_path / "blank") == ["one", "", "three"]


def test_translations_keep_their_index_and_empty_sentences_stay_empty() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(80, 80, BlockConfig(WIDTH, HEADS, INNER), (1, 1))
    model = Translator(Transformer(config), learn_tokenizer(corpus(), 80)).eval()
    texts = ["the dog sings in the park.", "", "a man runs here.", "Grün"]
    together = dict(model.translate(texts, beam=3, batch_size=2))
    assert sorted(together) == [0, 1, 2, 3]
    assert together[1] == ""
    for index, text in enumerate(texts):
        assert dict(model.translate([text], beam=3)) == {0: together[index]}
    model.tokenizer = None
    with pytest.raises(TrajformerError, match="no tokenizer"):
        list(model.translate(texts))
