"""Training a detector, and the command that uses it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from support.cli import error_line
from support.cli import run as command
from support.heads import voc_annotation

from trajformer.core.blocks import BlockConfig
from trajformer.core.multihead import recorded_weights
from trajformer.errors import CheckpointError, TrajformerError
from trajformer.heads.detr import task as detection
from trajformer.heads.detr.backbone import BackboneConfig, CnnConfig, ResNetConfig
from trajformer.heads.detr.boxes import iou
from trajformer.heads.detr.data import collate
from trajformer.heads.detr.loss import BoxLossConfig, box_loss
from trajformer.heads.detr.model import Detr, DetrConfig
from trajformer.heads.detr.objects import attention_maps, postprocess
from trajformer.heads.detr.shapes import LABELS, ShapesConfig, draw_shapes
from trajformer.heads.detr.task import TASK, DetectionDataConfig, DetectionModule, DetectionRecipe
from trajformer.heads.detr.voc import VocConfig
from trajformer.recipes.checkpoint import load_checkpoint, write_checkpoint
from trajformer.recipes.recipe import OptimConfig, TrainerConfig
from trajformer.training.run import train

SIZE = 32
MODEL = DetrConfig(
    queries=6,
    block=BlockConfig(width=32, heads=4, feedforward=48, dropout=0.0, norm_first=False),
    layers=(1, 2),
    backbone=BackboneConfig(cnn=CnnConfig((8, 16, 24), groups=4)),
)
DATA = DetectionDataConfig(
    shapes=ShapesConfig(
        height=SIZE, width=SIZE, objects=(1, 2), radius=(0.2, 0.3), train=16, val=6, test=5
    ),
    shorter=SIZE,
    longest=64,
    batch_size=8,
)
RECIPE = DetectionRecipe(
    MODEL, data=DATA, backbone_rate=0.5, optim=OptimConfig(learning_rate=1e-3),
    trainer=TrainerConfig(epochs=2, accelerator="cpu", log_every=1),
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training, which does not learn to detect."""
    pytest.importorskip("pycocotools")
    folder = tmp_path_factory.mktemp("detection") / "run"
    train(RECIPE, TASK, folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint fitted to one image, and this image."""
    torch.manual_seed(0)
    example = draw_shapes(DATA.shapes, (8, 4))
    batch, model = collate([example]), Detr(replace(MODEL, classes=len(LABELS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(120):
        optimizer.zero_grad()
        box_loss(model(batch.pixels), batch.targets, BoxLossConfig())["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    (detected,) = postprocess(model.eval()(batch.pixels), batch.original, score=0.5)
    assert detected.label.sort().values.tolist() == example.label.sort().values.tolist(), (
        "the image was not learned"
    )
    assert iou(detected.box[:, None], example.box[None]).amax(1).min() > 0.7
    folder = tmp_path_factory.mktemp("expert")
    write_checkpoint(folder / "best.ckpt", replace(RECIPE, labels=LABELS), model.state_dict())
    pixels = (example.image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    Image.fromarray(pixels).save(folder / "known.png")
    return folder / "best.ckpt", folder / "known.png"


def test_a_run_can_start_from_a_checkpoint(run: Path) -> None:
    start = replace(RECIPE, init=str(run / "best.ckpt"))
    before = load_checkpoint(run / "best.ckpt", DetectionRecipe)[0].state_dict()
    same = DetectionModule(start).model.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in same.items())
    folder = DetectionDataConfig(voc=VocConfig("somewhere"))
    other = DetectionModule(
        replace(start, data=folder, labels=("a", "b"), model=replace(MODEL, queries=9))
    ).model
    changed = {
        name
        for name, tensor in other.state_dict().items()
        if name not in before or not torch.equal(tensor, before[name])
    }
    assert changed == {"classify.weight", "classify.bias", "queries.weight"}
    renamed = DetectionModule(
        replace(start, data=folder, labels=("a", "b", "c"))
    ).model  # the same number
    assert not torch.equal(renamed.classify.weight, before["classify.weight"])
    with pytest.raises(CheckpointError, match=r"has model\.layers \[1, 2\], not \[1, 1\]"):
        DetectionModule(replace(start, model=replace(MODEL, layers=(1, 1))))


def test_the_backbone_has_its_learning_rate_and_frozen_parts_are_not_optimized() -> None:
    resnet = replace(MODEL, backbone=BackboneConfig(resnet=ResNetConfig((1, 1, 1, 1), 4)))
    for model in (MODEL, resnet):
        module = DetectionModule(replace(RECIPE, model=model, backbone_rate=0.1))
        groups, names = (
            module.groups(),
            {id(p): name for name, p in module.model.named_parameters()},
        )
        seen: list[str] = []
        for group in groups:
            mine = [names[id(parameter)] for parameter in group["params"]]
            assert {name.startswith("backbone") for name in mine} == {group["lr"] == 0.1}
            assert group["lr"] in (0.1, 1.0) and mine
            seen += mine
        assert sorted(seen) == sorted(
            name for name, p in module.model.named_parameters() if p.requires_grad
        )


def test_muon_has_its_rate_also_in_the_backbone_share() -> None:
    module = DetectionModule(
        replace(RECIPE, backbone_rate=0.1, optim=OptimConfig(learning_rate=1e-3, muon_rate=2e-3))
    )
    rates = {(bool(group.get("muon")), round(group["lr"], 9)) for group in module.groups()}
    assert (True, 2.0) in rates and rates <= {(True, 2.0), (True, 0.2), (False, 1.0), (False, 0.1)}


def test_a_learned_position_refuses_larger_images() -> None:
    data = replace(DATA, shapes=replace(DATA.shapes, width=3000))
    with pytest.raises(
        TrajformerError,
        match=r"images of 3000 pixels, but model.position: learned has room for \d+",
    ):
        DetectionModule(replace(RECIPE, model=replace(MODEL, position="learned"), data=data))


@pytest.mark.parametrize(
    ("root", "complaint"),
    [("", r"data\.voc\.root: give a folder"), ("x", "labels: name the classes")],
)
def test_invalid_recipes_are_rejected_with_the_field(
    root: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(TrajformerError, match=complaint):
        train(
            replace(RECIPE, data=replace(DATA, voc=VocConfig(root))),
            TASK,
            tmp_path / "run",
            progress=False,
        )
    assert not (tmp_path / "run").exists()


def test_average_precision_is_over_all_processes(
    expert: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = DetectionModule(replace(RECIPE, init=str(expert[0])))
    batch, logged = (
        collate([draw_shapes(DATA.shapes, (8, index)) for index in range(6)]),
        dict[str, float](),
    )
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.update({name: float(value)}))
    with torch.no_grad():
        module.eval().validation_step(batch, 0)
    first, others = module.pairs[:2], module.pairs[2:]
    module.on_validation_epoch_end()
    alone = dict(logged)
    assert alone["val/AP50"] > 0 and not module.pairs
    monkeypatch.setattr(detection.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(detection.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(
        detection.distributed,
        "all_gather_object",
        lambda gathered, pairs: gathered.__setitem__(slice(None), [pairs, others]),
    )
    module.pairs = first
    module.on_validation_epoch_end()
    assert logged == alone


def test_detect_prints_writes_and_draws_objects(
    expert: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    checkpoint, source = expert
    broken = tmp_path / "in" / "broken.png"
    broken.parent.mkdir()
    broken.write_bytes(b"no image")
    Image.open(source).resize((48, 48)).save(
        broken.parent / "known.png"
    )  # another size with the same name
    words = "--checkpoint", checkpoint, "--out", tmp_path / "out", "--attention"
    assert command("detect", source, broken.parent, *words) == 0
    out = capsys.readouterr().out
    truth = draw_shapes(DATA.shapes, (8, 4))
    name = LABELS[truth.label[0]]
    assert (
        f"{source}: " in out
        and f" {name}" in out
        and f"skipped {broken}: not a readable image" in out
    )
    rows = [
        json.loads(line)
        for line in (tmp_path / "out" / "detections.jsonl").read_text().splitlines()
    ]
    assert [(row["image"], row["width"], row["height"]) for row in rows] == [
        (str(source), 32, 32), (str(broken.parent / "known.png"), 48, 48)]  # fmt: skip
    assert sorted(one["label"] for one in rows[0]["objects"]) == sorted(
        LABELS[label] for label in truth.label.tolist()
    )
    detected = torch.tensor([one["box"] for one in rows[0]["objects"]])
    assert iou(detected[:, None], truth.box[None]).amax(1).min() > 0.7
    larger = torch.tensor([one["box"] for one in rows[1]["objects"]])
    torch.testing.assert_close(
        larger, detected * 1.5, atol=2.0, rtol=0.0
    )  # in pixels of the larger image
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == [
        "known-2.png",
        "known.png",
    ]
    widths = {Image.open(path).size for path in (tmp_path / "out").glob("*.png")}
    assert command("detect", source, "--checkpoint", checkpoint, "--out", tmp_path / "plain") == 0
    assert Image.open(tmp_path / "plain" / "known.png").width < min(width for width, _ in widths)


def test_detect_filters_by_score_and_can_join_layers(
    expert: tuple[Path, Path], tmp_path: Path
) -> None:
    checkpoint, source = expert
    counts = {}
    for words in (("--score", "1"), ("--score", "0"), ("--score", "0", "--nms"), ("--nms",)):
        assert (
            command(
                "detect",
                source,
                "--checkpoint",
                checkpoint,
                "--out",
                tmp_path / "out",
                "--overwrite",
                *words,
            )
            == 0
        )
        counts[words] = len(
            json.loads((tmp_path / "out" / "detections.jsonl").read_text())["objects"]
        )
    truth = len(draw_shapes(DATA.shapes, (8, 4)).label)
    assert (
        counts["--score", "1"] == 0
        and counts["--score", "0"] == MODEL.queries
        and counts[("--nms",)] == truth
    )
    assert counts["--score", "0", "--nms"] <= 2 * MODEL.queries


def test_a_split_is_scored_as_in_validation(run: Path, tmp_path: Path, capsys: Any) -> None:
    assert (
        command(
            "detect", "--checkpoint", run / "last.ckpt", "--split", "val", "--out", tmp_path / "out"
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "shapes: val: 6 images" in out and "AP50 " in out
    result = json.loads((tmp_path / "out" / "average_precision.json").read_text())
    logged = pd.read_csv(run / "csv" / "metrics.csv")["val/AP50"].dropna()
    assert result["AP50"] == pytest.approx(logged.iloc[-1], abs=1e-6)
    assert len((tmp_path / "out" / "detections.jsonl").read_text().splitlines()) == 6
    assert len(list((tmp_path / "out").glob("val_*.png"))) == 6


def test_a_voc_folder_is_scored(expert: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    checkpoint, source = expert
    for part in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "JPEGImages" / "known.png").write_bytes(source.read_bytes())
    (tmp_path / "ImageSets/Main/test.txt").write_text("known\n")
    truth = draw_shapes(DATA.shapes, (8, 4))
    objects = [
        (LABELS[label], *box)
        for box, label in zip(truth.box.tolist(), truth.label.tolist(), strict=True)
    ]
    (tmp_path / "Annotations" / "known.xml").write_text(voc_annotation(*objects))
    assert command("detect", tmp_path, "--checkpoint", checkpoint, "--split", "test") == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}: test: 1 images, {len(truth.label)} objects" in out and "AP50 1.000" in out


def test_mistakes_of_the_user_are_one_line_errors(
    expert: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    known = ("--checkpoint", expert[0])
    (tmp_path / "broken.jpg").touch()
    cases: list[tuple[tuple[object, ...], str]] = [
        (known, "give images or folders"),
        ((expert[1], "--checkpoint", tmp_path / "none.ckpt"), "no such checkpoint"),
        ((tmp_path / "broken.jpg", *known), "none of the 1 images can be read"),
        ((expert[1], *known, "--attention"), "--out DIR"),
        ((*known, "--split", "tset"), "no split 'tset'"),
        ((tmp_path, *known, "--split", "test"), "cannot be read"),
        ((tmp_path, tmp_path, *known, "--split", "test"), "one folder at most"),
    ]
    for words, complaint in cases:
        assert complaint in error_line(capsys, "detect", *words)


def test_attention_maps_belong_to_the_queries_of_the_objects(expert: tuple[Path, Path]) -> None:
    model, _ = load_checkpoint(expert[0], DetectionRecipe)
    assert isinstance(model, Detr)
    batch = collate([draw_shapes(DATA.shapes, (8, 4))])
    with torch.no_grad():
        before = model(batch.pixels)
    (detected,) = postprocess(before, batch.original, score=0.5)
    decoder, encoder = attention_maps(model, batch.pixels, batch.original, detected)
    assert decoder.shape == encoder.shape == (len(detected.label), 4, 4)
    torch.testing.assert_close(decoder.sum((1, 2)), torch.ones(len(detected.label)))
    with recorded_weights(model) as record:
        model(batch.pixels)
    weights = record["encoder.layers.0.attention.sublayer"][0][0].mean(0)  # [L, L]
    row, column = (detected.box[0].view(2, 2).mean(0).flip(0) / SIZE * 4).long().tolist()
    torch.testing.assert_close(encoder[0].flatten(), weights[4 * row + column])
    assert torch.equal(model(batch.pixels).logit, before.logit)
