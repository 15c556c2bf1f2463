"""The Transformer equals PyTorch's and `attention-is-all-you-need-pytorch`; loss, tokens, padding and commands."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from support.cli import error_line, run
from support.heads import sentences, tolerance
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

TOKENS, WIDTH, HEADS, INNER = 30, 32, 4, 48


def features(reference: nn.Transformer, embedded: list[Tensor], source: Tensor) -> Tensor:
    """The output of PyTorch's transformer for embedded source and target sentences."""
    causal = nn.Transformer.generate_square_subsequent_mask(embedded[1].shape[1]).isinf()
    return reference(
        *embedded,
        tgt_mask=causal,
        src_key_padding_mask=source == PAD,
        memory_key_padding_mask=source == PAD,
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_equals_torch_nn_transformer_in_outputs_and_gradients(norm_first: bool) -> None:
    torch.manual_seed(0)
    reference = randomize(
        nn.Transformer(WIDTH, HEADS, 2, 3, INNER, 0.0, batch_first=True, norm_first=norm_first)
    )
    block = BlockConfig(WIDTH, HEADS, INNER, dropout=0.0, norm_first=norm_first)
    model = Transformer(
        TransformerConfig(TOKENS, TOKENS, block, (2, 3), tied="none", scale="none", final_norm=True)
    )
    known = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not name.startswith(("encoder", "decoder"))
    }
    model.load_state_dict(
        StateDictReader(reference.state_dict(), "reference").take_model(
            lambda: model, TORCH_LAYERS, known
        )
    )
    source, target = sentences(5, 7, TOKENS), sentences(5, 6, TOKENS, seed=1)
    embedded = [
        (part.token(tokens) + sinusoid(torch.arange(tokens.shape[1]).float(), WIDTH)).detach()
        for part, tokens in ((model.source, source), (model.target, target))
    ]
    expected_output = features(reference, embedded, source)
    output = model.decode(target, *model.encode(source))
    real = target != PAD
    torch.testing.assert_close(output[real], expected_output[real], **tolerance(30, INNER))
    expected_output[real].square().sum().backward()
    output[real].square().sum().backward()
    pairs = [
        (
            model.encoder.layers[0].feedforward.sublayer[0].weight,
            reference.encoder.layers[0].linear1.weight,
        ),
        (
            model.decoder.layers[2].cross_attention.norm.weight,
            reference.decoder.layers[2].norm2.weight,
        ),
        (
            model.decoder.layers[0].self_attention.sublayer.out.weight,
            reference.decoder.layers[0].self_attn.out_proj.weight,
        ),
    ]
    for weight, reference_weight in pairs:
        torch.testing.assert_close(weight.grad, reference_weight.grad, **tolerance(60, INNER, 10.0))


def official(reference: nn.Transformer, table: Tensor) -> dict[str, Tensor]:
    """Weights of PyTorch's transformer in the layout of `attention-is-all-you-need-pytorch`, which has fewer biases."""
    words = {
        r"multihead_attn\.": "enc_attn.", r"self_attn\.": "slf_attn.", r"out_proj\.": "fc.", r"linear(\d)": r"pos_ffn.w_\1",
        r"layers\.": "layer_stack.", r"norm1": "slf_attn.layer_norm",
        r"(encoder\S*)norm2": r"\1pos_ffn.layer_norm",
        r"(decoder\S*)norm2": r"\1enc_attn.layer_norm", r"norm3": "pos_ffn.layer_norm",
    }  # fmt: skip
    state = {"trg_word_prj.weight": table}
    for stack, word in (("encoder", "src"), ("decoder", "trg")):
        state[f"{stack}.{word}_word_emb.weight"] = table
        state[f"{stack}.position_enc.pos_table"] = sinusoid(torch.arange(20.0), WIDTH)[None]
        state |= {
            f"{stack}.layer_norm.weight": torch.ones(WIDTH),
            f"{stack}.layer_norm.bias": torch.zeros(WIDTH),
        }
    for name, tensor in reference.state_dict().items():
        for old, new in words.items():
            name = re.sub(old, new, name)
        if name.endswith("in_proj_weight"):
            parts = zip(("w_qs", "w_ks", "w_vs"), tensor.chunk(3), strict=True)
            state |= {
                name.replace("in_proj_weight", f"{part}.weight"): rows for part, rows in parts
            }
        elif not name.endswith(("in_proj_bias", "fc.bias")):
            state[name] = tensor
    return state


def test_published_weights_give_the_published_logits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    reference = randomize(
        nn.Transformer(WIDTH, HEADS, 2, 2, INNER, 0.0, batch_first=True, layer_norm_eps=1e-6)
    ).eval()
    reference.encoder.norm = reference.decoder.norm = None
    for name, parameter in reference.named_parameters():
        if name.endswith(("in_proj_bias", "out_proj.bias")):
            nn.init.zeros_(parameter)
    table, rows = (
        torch.randn(TOKENS, WIDTH) * 0.3,
        [1, 2, 3, 0],
    )  # foreign numbers of our first tokens
    torch.save(official(reference, table), tmp_path / "official.pt")
    recipe, weights, _ = convert(
        "attention_is_all_you_need", tmp_path / "official.pt", Options(heads=HEADS)
    )
    write_checkpoint(tmp_path / "ours.ckpt", recipe, weights)
    model, again = load_checkpoint(tmp_path / "ours.ckpt", TranslationRecipe)
    assert (again.model.block.d_k, again.model.block.d_v, again.model.tied) == (8, 8, "all")
    table = table[[*rows, *range(4, TOKENS)]]
    source, target = sentences(4, 8, TOKENS), sentences(4, 6, TOKENS, seed=1)
    embedded = [
        nn.functional.layer_norm(
            table[tokens] + sinusoid(torch.arange(tokens.shape[1]).float(), WIDTH),
            (WIDTH,),
            eps=1e-6,
        )
        for tokens in (source, target)
    ]
    expected_output = features(reference, embedded, source) @ table.T * WIDTH**-0.5
    real = target != PAD
    torch.testing.assert_close(
        model(source, target)[real], expected_output[real], **tolerance(30, INNER)
    )


@pytest.mark.parametrize("scale", ["none", "embedding", "projection"])
def test_tied_weights_are_one_parameter_scaled_on_one_side(scale: str) -> None:
    block = BlockConfig(WIDTH, HEADS, INNER, dropout=0.0)
    model = Transformer(TransformerConfig(TOKENS, TOKENS, block, (1, 1), scale=scale))  # type: ignore[arg-type]
    assert model.source.token.weight is model.projection.weight is model.target.token.weight
    x, tokens = torch.randn(2, WIDTH), torch.tensor([[4, 5]])
    torch.testing.assert_close(
        model.project(x),
        x @ model.projection.weight.T * (WIDTH**-0.5 if scale == "projection" else 1),
    )
    embedded = model.source(tokens) - sinusoid(torch.arange(2.0), WIDTH)
    expected_output = model.source.token.weight[tokens] * (
        WIDTH**0.5 if scale == "embedding" else 1
    )
    torch.testing.assert_close(embedded, expected_output, **tolerance(30, INNER))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_does_not_change_other_sentences_and_gradients_are_finite(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    block = BlockConfig(WIDTH, HEADS, INNER, dropout=0.0, norm_first=False)
    model = Transformer(TransformerConfig(TOKENS, TOKENS, block, (2, 2))).to(dtype)
    source, target = sentences(3, 6, TOKENS), sentences(3, 5, TOKENS, seed=1)
    padded, empty = (
        torch.cat([tokens, torch.full((1, tokens.shape[1]), PAD)]) for tokens in (source, target)
    )
    logits = model(nn.functional.pad(padded, (0, 4), value=PAD), empty)
    torch.testing.assert_close(
        logits[:3], model(source, target), atol=3e-2 if dtype != torch.float32 else 1e-6, rtol=1e-2
    )
    loss = token_loss(logits[empty != PAD], empty[empty != PAD]) + logits[3].float().square().mean()
    loss.backward()
    assert loss.isfinite() and all(
        p.grad is None or p.grad.isfinite().all() for p in model.parameters()
    )


def test_label_smoothing_is_shared_by_the_wrong_tokens() -> None:
    logits, target, eps = torch.randn(6, 9), torch.tensor([0, 3, 8, 2, 2, 5]), 0.1
    expected_output = torch.full((6, 9), eps / 8).scatter(1, target[:, None], 1 - eps)
    expected = -(expected_output * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(token_loss(logits, target, eps), expected)
    torch.testing.assert_close(
        token_loss(logits, target, 0.0), nn.functional.cross_entropy(logits, target)
    )


def corpus(count: int = 400) -> list[str]:
    subjects, verbs = ("a man", "the dog", "two girls", "Grün"), ("runs", "sleeps", "sings")
    places = ("here", "in the park", "ÄÖÜ")
    return [f"{subjects[i % 4]} {verbs[i % 3]} {places[(i // 3) % 3]}." for i in range(count)]


def test_the_tokenizer_is_reversible_and_stored_as_bytes() -> None:
    tokenizer = learn_tokenizer(corpus(), 80)
    model = tokenizer.serialized_model_proto()
    assert len(tokenizer) == 80 and model == learn_tokenizer(corpus(), 80).serialized_model_proto()
    again = load_tokenizer(model)
    texts = ["the dog sings in the park.", "Grün sleeps ÄÖÜ.", ""]
    tokens = again.encode(texts)
    assert again.decode(tokens) == texts and tokens[2] == []
    assert all(token > UNKNOWN for row in tokens for token in row)
    assert "".join(again.id_to_piece(tokens[0])).replace("▁", " ").strip() == texts[0]
    with pytest.raises(TrajformerError, match="not a sentencepiece model"):
        load_tokenizer(b"nonsense")
    with pytest.raises(TrajformerError, match=r"data\.vocabulary: 100000"):
        learn_tokenizer(corpus(), 100_000)


def test_pairs_that_are_too_long_or_empty_are_left_out_and_counted() -> None:
    tokenizer = learn_tokenizer(corpus(), 80)
    source, target = (
        ["a man runs here.", "", "the dog " * 40, "Grün sings ÄÖÜ."],
        ["the dog sings.", "here.", "a man", "runs"],
    )
    pairs = Pairs("x", (source, target), tokenizer, 20)
    assert len(pairs) == 2 and pairs.left_out == 2
    assert len(Pairs("x", (source, target), tokenizer, None)) == 4
    batch = pairs[[1, 0]]
    assert batch.text == ("runs", "the dog sings.") and (batch.target[:, 0] == START).all()
    rows = batch.target.tolist()
    assert rows[0][-1] == PAD and [
        tokenizer.decode(row[1 : row.index(END)]) for row in rows
    ] == list(batch.text)
    assert pairs.sizes(torch.arange(2).numpy()).tolist() == [
        [len(s), len(t)] for s, t, _ in pairs.pairs
    ]


def test_invalid_text_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("eins\nzwei\n")
    with pytest.raises(TrajformerError, match=r"train\.en: no such file"):
        read_pairs(tmp_path, "train", "de", "en")
    (tmp_path / "train.en").write_text("one\n")
    with pytest.raises(TrajformerError, match="2 and 1 lines"):
        read_pairs(tmp_path, "train", "de", "en")
    (tmp_path / "cut.gz").write_bytes(b"\x1f\x8b\x08\x00cut")
    (tmp_path / "latin").write_bytes("größer".encode("latin-1"))
    for name in ("cut.gz", "latin"):
        with pytest.raises(TrajformerError, match=f"{name}: not UTF-8 text"):
            read_lines(tmp_path / name)
    (tmp_path / "blank").write_text("one\n\nthree\n")
    assert read_lines(tmp_path / "blank") == ["one", "", "three"]


def translator() -> Translator:
    torch.manual_seed(0)
    tokenizer, block = learn_tokenizer(corpus(), 80), BlockConfig(WIDTH, HEADS, INNER)
    return Translator(Transformer(TransformerConfig(80, 80, block, (1, 1))), tokenizer).eval()


def test_translations_keep_their_index_and_empty_sentences_stay_empty() -> None:
    model, texts = translator(), ["the dog sings in the park.", "", "a man runs here.", "Grün"]
    output = dict(model.translate(texts, beam=3, batch_size=2))
    assert sorted(output) == [0, 1, 2, 3] and output[1] == ""
    assert {
        index: dict(model.translate([text], beam=3))[0] for index, text in enumerate(texts)
    } == output
    model.tokenizer = None
    with pytest.raises(TrajformerError, match="no tokenizer"):
        list(model.translate(texts))


RECIPE = """
task: translation
model: {block: {width: 32, heads: 2, feedforward: 64, dropout: 0.1, norm_first: true}, layers: [1, 1]}
data: {source: de, target: en, vocabulary: 80, batch_size: 32, bucket: 4}
optim: {learning_rate: 1.0e-2, schedule: inverse_sqrt, warmup: 0.1, average: 0.5}
trainer: {epochs: 8, threads: 1, accelerator: cpu, validate_every: 4, log_every: 5}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy language pair in text/, a recipe, and a run."""
    folder = tmp_path_factory.mktemp("translation")
    (folder / "text").mkdir()
    for split, count in (("train", 400), ("val", 12)):
        texts = corpus(count)
        (folder / "text" / f"{split}.en").write_text("\n".join(texts) + "\n")
        (folder / "text" / f"{split}.de").write_text(
            "\n".join(text[:-1].upper() + "!" for text in texts) + "\n"
        )
    (folder / "recipe.yaml").write_text(RECIPE)
    assert (
        run(
            "train",
            "--config",
            folder / "recipe.yaml",
            "--data.root",
            folder / "text",
            "--out",
            folder / "run",
        )
        == 0
    )
    return folder


def test_the_commands_train_translate_score_and_draw(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, text = trained / "run" / "best.ckpt", trained / "text"
    options = (
        "--checkpoint",
        checkpoint,
        "--reference",
        text / "val.en",
        "--out",
        tmp_path / "out.txt",
        "--pictures",
        2,
    )
    capsys.readouterr()
    assert run("translate", text / "val.de", *options, "--attention", tmp_path / "maps") == 0
    metrics, *pictures = capsys.readouterr().out.splitlines()
    assert json.loads(metrics)["BLEU"] > 60 and "tok:13a" in json.loads(metrics)["signature"]
    assert len(pictures) == 2 and all(Path(picture).stat().st_size > 5000 for picture in pictures)
    greedy = run("translate", text / "val.de", "--checkpoint", checkpoint, "--beam", 1)
    assert greedy == 0 and len(capsys.readouterr().out.splitlines()) == 12
    model, recipe = load_checkpoint(checkpoint, TranslationRecipe)
    source, written = (read_lines(path) for path in (text / "val.de", tmp_path / "out.txt"))
    assert dict(model.translate(source)) == dict(enumerate(written))
    assert recipe.optim.schedule == "inverse_sqrt"


def test_standard_input_has_the_lines_of_a_file(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["ONE\u2028TWO!", "THREE\x0cFOUR!", "", "FIVE!"]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    words, out = (
        (
            "--checkpoint",
            trained / "run" / "last.ckpt",
            "--beam",
            1,
            "--out",
            tmp_path / "out",
            "--overwrite",
        ),
        [],
    )
    monkeypatch.setattr("sys.stdin", io.StringIO((tmp_path / "in").read_text()))
    for source in (tmp_path / "in", "-"):
        assert run("translate", source, *words) == 0
        out.append((tmp_path / "out").read_text())
    assert out[0] == out[1] and out[0].count("\n") == 4


def test_mistakes_of_the_user_are_one_line_errors(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, text = trained / "run" / "best.ckpt", trained / "text"
    (tmp_path / "short").write_text("one\n")
    for words, complaint in (
        (("translate", tmp_path / "none", "--checkpoint", checkpoint), "none: cannot be read"),
        (
            (
                "translate",
                text / "val.de",
                "--checkpoint",
                checkpoint,
                "--reference",
                tmp_path / "short",
            ),
            "has 1 lines",
        ),
        (
            ("evaluate", "--checkpoint", checkpoint, "--store", tmp_path),
            "expected one for forecasting",
        ),
        (("train", "--config", trained / "recipe.yaml", "--out", tmp_path / "x"), "data.root"),
        (
            (
                "train",
                "--config",
                trained / "recipe.yaml",
                "--out",
                trained / "run",
                "--data.root",
                text,
            ),
            "--resume",
        ),
    ):
        assert complaint in error_line(capsys, *words)


def test_a_run_on_other_text_is_not_resumed(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    shutil.copytree(trained / "text", tmp_path / "text")
    with (tmp_path / "text" / "train.en").open("a") as file:
        file.write("quite another sentence.\n" * 40)
    with (tmp_path / "text" / "train.de").open("a") as file:
        file.write("QUITE ANOTHER SENTENCE!\n" * 40)
    options = (
        "--data.root",
        tmp_path / "text",
        "--out",
        tmp_path / "run",
        "--resume",
        "--trainer.epochs",
        10,
    )
    assert run("train", "--config", trained / "recipe.yaml", *options) == 1
    assert "tokenizer" in capsys.readouterr().err
