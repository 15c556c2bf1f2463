"""`trajformer weights convert`: published weights keep their scores, invalid files are rejected."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.cli import Evil, run
from support.heads import CLASSES, HEADS, LAYERS, SIZE, hf_vit, timm_forward, timm_state
from torch import Tensor

from trajformer.core.weights import StateDictReader
from trajformer.errors import CheckpointError
from trajformer.heads.vit.task import ClassificationRecipe
from trajformer.recipes.checkpoint import load_checkpoint

LABELS = ("ant", "bee", "cat", "dog", "elk")
State = dict[str, Any]


def convert(layout: str, file: Path, out: Path, *options: object) -> int:
    return run("weights", "convert", layout, file, out, "--heads", HEADS, "--overwrite", *options)


def make_image(folder: Path) -> tuple[Path, Tensor]:
    """An image file, and its content as float64 [1, 3, S, S] in -1..1."""
    values = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    Image.fromarray(values).save(folder / "image.png")
    return folder / "image.png", torch.from_numpy(values / 127.5 - 1).permute(2, 0, 1)[None]


def logits(checkpoint: Path, path: Path) -> Tensor:
    """Scores of an image file, as `trajformer classify` computes them."""
    model, recipe = load_checkpoint(checkpoint, ClassificationRecipe)
    return model(recipe.prepare(recipe.read(path))[None])


def test_a_file_of_hugging_face_keeps_its_scores(tmp_path: Path, capsys: Any) -> None:
    reference = hf_vit()
    reference.save_pretrained(tmp_path / "published")
    (tmp_path / "labels.txt").write_text("\n".join(LABELS) + "\n")
    path, x = make_image(tmp_path)
    expected = reference(x.float()).logits.detach()
    out = tmp_path / "new" / "converted.ckpt"
    file = tmp_path / "published" / "model.safetensors"
    assert convert("hf_vit", file, out, "--labels", tmp_path / "labels.txt") == 0
    num_tensors = len(list(reference.parameters()))
    printed = capsys.readouterr().out
    assert f"{out}: a model for classification, {num_tensors} tensors" in printed
    torch.testing.assert_close(logits(out, path), expected, atol=1e-5, rtol=1e-5)
    assert run("classify", "--checkpoint", out, path, "--top", CLASSES) == 0
    probabilities = zip(LABELS, expected.softmax(-1)[0].tolist(), strict=True)
    _, *words = capsys.readouterr().out.strip().split("  ")
    assert sorted(words) == sorted(f"{name} {value:.3f}" for name, value in probabilities)


FILES: dict[str, Callable[[State], object]] = {
    "run.pt": lambda state: state,
    "run.pth": lambda state: {"model": state, "epoch": 3},
    "run.bin": lambda state: {"state_dict": state, "epoch": 3},
    "run.chkpt": lambda state: {
        "model": state,
        "settings": argparse.Namespace(epochs=3, names=["a"]),
    },  # of a training script
}


@pytest.mark.parametrize("name", FILES)
def test_the_timm_layout_is_read_from_pytorch_files(tmp_path: Path, name: str) -> None:
    state = {
        key: tensor.half() if name == "run.pth" else tensor for key, tensor in timm_state().items()
    }
    torch.save(FILES[name](state), tmp_path / name)
    assert convert("timm_vit", tmp_path / name, tmp_path / "converted.ckpt") == 0
    model, _ = load_checkpoint(tmp_path / "converted.ckpt", ClassificationRecipe)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    path, x = make_image(tmp_path)
    torch.testing.assert_close(
        logits(tmp_path / "converted.ckpt", path).double(),
        timm_forward(state, x),
        atol=1e-5,
        rtol=1e-5,
    )


def test_a_converted_file_is_not_larger(tmp_path: Path) -> None:
    """Queries, keys and values are views of one matrix, which must not be saved three times."""
    torch.save(timm_state(), tmp_path / "timm.pt")
    assert (
        run("weights", "convert", "timm_vit", tmp_path / "timm.pt", tmp_path / "converted.ckpt")
        == 0
    )
    _, recipe = load_checkpoint(tmp_path / "converted.ckpt", ClassificationRecipe)
    assert recipe.model.block.heads == 1  # without --heads: 64 channels per head, at least one head
    assert (recipe.model.image_size, recipe.model.layers, recipe.model.classes) == (
        SIZE,
        LAYERS,
        CLASSES,
    )
    numbers = sum(tensor.numel() for tensor in timm_state().values())
    assert (tmp_path / "converted.ckpt").stat().st_size < 4 * numbers + 40_000


BEFORE = b"PK\3\4" + bytes(26) + b"archive/data.pkl trajformer"  # looks like our weights


def assert_rejected(
    capsys: Any,
    tmp_path: Path,
    file: Path,
    complaint: str,
    layout: str = "timm_vit",
    *options: object,
) -> None:
    """The command fails with a one-line error that contains `complaint`, and writes nothing."""
    out = tmp_path / "converted.ckpt"
    out.write_bytes(BEFORE)
    assert convert(layout, file, out, *options) == 1
    error = capsys.readouterr().err
    assert complaint in error
    assert error.startswith("trajformer weights: ")
    assert error.count("\n") == 1
    assert out.read_bytes() == BEFORE
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "key", [key for key in timm_state() if "blocks" not in key or "blocks.1" in key]
)
def test_every_tensor_of_timm_is_required_with_its_shape(
    tmp_path: Path, capsys: Any, key: str
) -> None:
    torch.save(
        {name: tensor for name, tensor in timm_state().items() if name != key}, tmp_path / "less.pt"
    )
    convert("timm_vit", tmp_path / "less.pt", tmp_path / "converted.ckpt")
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ("no tensor '" in error or "has no place" in error)
    block = key.rsplit(".", 2)[0]
    assert (
        key in error or block in error or key.endswith("qkv.bias")
    )  # optional, but for all layers together
    state = timm_state()
    torch.save(state | {key: torch.cat([state[key], state[key][:1]])}, tmp_path / "more.pt")
    assert convert("timm_vit", tmp_path / "more.pt", tmp_path / "converted.ckpt") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "shape" in error
    assert not (tmp_path / "converted.ckpt").exists()


def test_every_tensor_of_hugging_face_is_required(tmp_path: Path, capsys: Any) -> None:
    hf_vit().save_pretrained(tmp_path / "published")
    state = load_file(tmp_path / "published" / "model.safetensors")
    capsys.readouterr()  # a progress bar
    for key in state:
        save_file(
            {name: t for name, t in state.items() if name != key}, tmp_path / "less.safetensors"
        )
        assert_rejected(capsys, tmp_path, tmp_path / "less.safetensors", "'", "hf_vit")


OTHER_TENSORS: dict[str, tuple[Callable[[State], State], str]] = {
    "another layout": (
        lambda s: {f"vit.{k}": v for k, v in s.items()},
        "no tensor 'patch_embed.proj.weight'",
    ),
    "a tensor too many": (
        lambda s: s | {"fc_norm.weight": torch.ones(32)},
        "tensor 'fc_norm.weight' has no place",
    ),
    "a gap in the layers": (
        lambda s: {k: v for k, v in s.items() if "blocks.1." not in k},
        "tensor 'blocks.2.",
    ),
    "not finite": (
        lambda s: s | {"head.bias": torch.full((CLASSES,), torch.nan)},
        "'head.bias' has values that are not finite",
    ),
    "whole numbers": (
        lambda s: s | {"head.bias": torch.ones(CLASSES, dtype=torch.int64)},
        "'head.bias' holds torch.int64",
    ),
    "no tensor": (lambda s: s | {"head.bias": [1.0]}, "entry 'head.bias' is no tensor"),
    "positions of no square": (
        lambda s: s | {"pos_embed": torch.ones(1, 16, 32)},
        "16 positions, expected square patches",
    ),
    "oblong patches": (
        lambda s: s | {"patch_embed.proj.weight": torch.ones(32, 3, 4, 2)},
        "patches of 4 x 2 pixels",
    ),
    "nothing in it": (lambda s: {}, "holds no tensors by name"),
    "a flat matrix": (
        lambda s: s | {"head.weight": torch.ones(32)},
        "'head.weight' has shape [32], expected 2 dimensions",
    ),
    "stretched": (
        lambda s: s | {"head.weight": torch.ones(1, 1).expand(10**7, 10**6)},
        "'head.weight' is no plain dense tensor",
    ),
}


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda data: b"no weights",
    "cut": lambda data: data[: len(data) // 2],
    "huge header": lambda data: b"\xff" * 7 + b"\x7f" + data[8:],
}
LABEL_FILES = {
    b"ant\nbee\n": "5 classes, but 2 labels",
    b"ant\nant\nbee\ncat\ndog\n": "an empty line or a repeated name",
    b"\xff\xfe": "labels cannot be read",
}


@pytest.mark.parametrize("case", [*OTHER_TENSORS, *DAMAGES, *LABEL_FILES, "missing", "--heads"])
def test_invalid_files_and_options_are_rejected(tmp_path: Path, capsys: Any, case: Any) -> None:
    file, options, complaint = tmp_path / "odd.pt", [], f"{tmp_path / 'odd.pt'}: not "
    torch.save(timm_state(), file)
    if case in OTHER_TENSORS:
        change, complaint = OTHER_TENSORS[case]
        torch.save(change(timm_state()), file)
    elif case in DAMAGES:
        file.write_bytes(DAMAGES[case](file.read_bytes()))
        save_file(timm_state(), tmp_path / "odd.safetensors")
        damaged = DAMAGES[case]((tmp_path / "odd.safetensors").read_bytes())
        (tmp_path / "odd.safetensors").write_bytes(damaged)
        assert_rejected(capsys, tmp_path, tmp_path / "odd.safetensors", "odd.safetensors: not ")
    elif case in LABEL_FILES:
        (tmp_path / "labels.txt").write_bytes(case)
        options, complaint = ["--labels", tmp_path / "labels.txt"], LABEL_FILES[case]
    elif case == "missing":
        file.unlink()
        complaint = f"{file}: no such file"
    else:
        options, complaint = ["--heads", 5], "heads 5 does not divide width 32"
    assert_rejected(capsys, tmp_path, file, complaint, "timm_vit", *options)


def test_code_in_a_pickle_is_not_executed(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(timm_state() | {"extra": Evil()}, tmp_path / "odd.pt")
    assert_rejected(
        capsys, tmp_path, tmp_path / "odd.pt", "not readable (damaged, or not plain tensors)"
    )
    assert not Path("executed").exists()
    torch.load(tmp_path / "odd.pt", weights_only=False)
    assert Path("executed").exists()  # the pickle does execute code


@pytest.mark.parametrize("ending", ["safetensors", "ckpt"])
def test_a_checkpoint_of_a_run_is_reduced_to_weights(tmp_path: Path, ending: str) -> None:
    torch.save(timm_state(), tmp_path / "timm.pt")
    assert convert("timm_vit", tmp_path / "timm.pt", tmp_path / "converted.ckpt") == 0
    content = torch.load(tmp_path / "converted.ckpt", weights_only=True) | {
        "optimizer_states": [torch.zeros(100_000)]
    }
    torch.save(content, tmp_path / "run.ckpt")
    small = tmp_path / f"small.{ending}"
    assert run("weights", "convert", "trajformer", tmp_path / "run.ckpt", small) == 0
    assert small.stat().st_size < (tmp_path / "run.ckpt").stat().st_size - 390_000
    model, recipe = load_checkpoint(tmp_path / "run.ckpt", ClassificationRecipe)
    small_model, small_recipe = load_checkpoint(small, ClassificationRecipe)
    assert recipe == small_recipe
    state = model.state_dict()
    for name, value in small_model.state_dict().items():
        assert torch.equal(state[name], value), name
    path, _ = make_image(tmp_path)
    assert run("classify", "--checkpoint", small, path) == 0


def test_tensors_that_follow_from_the_sizes_are_compared() -> None:
    table = torch.arange(6.0)
    source = StateDictReader({"a": table.double(), "b": table + 1}, "file")
    source.take_constant("a", table)
    source.take_constant("c", table)  # optional
    assert "a" not in source
    with pytest.raises(CheckpointError, match="file: 'b' differs from the values"):
        source.take_constant("b", table)
