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
    MODEL,
    data=DATA,
    backbone_rate=0.5,
    optim=OptimConfig(learning_rate=1e-3),
    trainer=TrainerConfig(epochs=2, accelerator="cpu", log_every=1),
)


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
    batch = collate([example])
    model = Detr(replace(MODEL, classes=len(LABELS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(120):
        optimizer.zero_grad()
        terms = box_loss(model(batch.pixels), batch.targets, BoxLossConfig())
        terms["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    (detected,) = postprocess(model.eval()(batch.pixels), batch.original, score=0.5)
    learned = detected.label.sort().values.tolist()
    assert learned == example.label.sort().values.tolist(), "the image was not learned"
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
    more_queries = replace(MODEL, queries=9)
    other = replace(start, data=folder, labels=("a", "b"), model=more_queries)
    changed = set()
    for name, tensor in DetectionModule(other).model.state_dict().items():
        if name not in before or not torch.equal(tensor, before[name]):
            changed.add(name)
    assert changed == {"classify.weight", "classify.bias", "queries.weight"}
    as_many_labels = replace(start, data=folder, labels=("a", "b", "c"))
    renamed = DetectionModule(as_many_labels).model
    assert not torch.equal(renamed.classify.weight, before["classify.weight"])
    with pytest.raises(CheckpointError, match=r"has model\.layers \[1, 2\], not \[1, 1\]"):
        DetectionModule(replace(start, model=replace(MODEL, layers=(1, 1))))


def test_the_backbone_has_its_learning_rate_and_frozen_parts_are_not_optimized() -> None:
    resnet = replace(MODEL, backbone=BackboneConfig(resnet=ResNetConfig((1, 1, 1, 1), 4)))
    for model in (MODEL, resnet):
        module = DetectionModule(replace(RECIPE, model=model, backbone_rate=0.1))
        names = {id(parameter): name for name, parameter in module.model.named_parameters()}
        optimized: list[str] = []
        for group in module.groups():
            members = [names[id(parameter)] for parameter in group["params"]]
            in_backbone = {name.startswith("backbone") for name in members}
            assert in_backbone == {group["lr"] == 0.1}
            assert group["lr"] in (0.1, 1.0)
            optimized += members
        trained = []
        for name, parameter in module.model.named_parameters():
            if parameter.requires_grad:
                trained.append(name)
        assert sorted(optimized) == sorted(trained)


def test_muon_has_its_rate_also_in_the_backbone() -> None:
    optim = OptimConfig(learning_rate=1e-3, muon_rate=2e-3)
    module = DetectionModule(replace(RECIPE, backbone_rate=0.1, optim=optim))
    rates = set()
    for group in module.groups():
        rates.add((bool(group.get("muon")), round(group["lr"], 9)))
    assert (True, 2.0) in rates
    assert rates <= {(True, 2.0), (True, 0.2), (False, 1.0), (False, 0.1)}


def test_a_learned_position_refuses_larger_images() -> None:
    data = replace(DATA, shapes=replace(DATA.shapes, width=3000))
    with pytest.raises(
        TrajformerError,
        match=r"images of 3000 pixels, but model.position: learned has positions for \d+",
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
    batch = collate([draw_shapes(DATA.shapes, (8, index)) for index in range(6)])
    logged: dict[str, float] = {}
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.update({name: float(value)}))
    with torch.no_grad():
        module.eval().validation_step(batch, 0)
    first = module.pairs[:2]
    others = module.pairs[2:]
    module.on_validation_epoch_end()
    alone = dict(logged)
    assert alone["val/AP50"] > 0
    assert not module.pairs

    def gather(gathered: list[Any], pairs: Any) -> None:
        gathered[:] = [pairs, others]

    monkeypatch.setattr(detection.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(detection.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(detection.distributed, "all_gather_object", gather)
    module.pairs = first
    module.on_validation_epoch_end()
    assert logged == alone


def read_rows(folder: Path) -> list[Any]:
    """The lines of detections.jsonl, one per image."""
    lines = (folder / "detections.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_detect_writes_objects_in_pixels_of_the_image(
    expert: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    checkpoint, source = expert
    broken = tmp_path / "in" / "broken.png"
    larger = tmp_path / "in" / "known.png"  # with the same name as the first image
    broken.parent.mkdir()
    broken.write_bytes(b"no image")
    Image.open(source).resize((48, 48)).save(larger)
    out = tmp_path / "out"
    assert command("detect", source, broken.parent, "--checkpoint", checkpoint, "--out", out) == 0

    truth = draw_shapes(DATA.shapes, (8, 4))
    names = [LABELS[label] for label in truth.label.tolist()]
    printed = capsys.readouterr().out
    assert f"{source}: " in printed
    assert f" {names[0]}" in printed
    assert f"skipped {broken}: not a readable image" in printed

    first, second = read_rows(out)
    assert (first["image"], first["width"], first["height"]) == (str(source), 32, 32)
    assert (second["image"], second["width"], second["height"]) == (str(larger), 48, 48)
    assert sorted(one["label"] for one in first["objects"]) == sorted(names)
    box = torch.tensor([one["box"] for one in first["objects"]])
    assert iou(box[:, None], truth.box[None]).amax(1).min() > 0.7
    larger_box = torch.tensor([one["box"] for one in second["objects"]])
    torch.testing.assert_close(larger_box, box * 1.5, atol=2.0, rtol=0.0)
    assert sorted(path.name for path in out.glob("*.png")) == ["known-2.png", "known.png"]


def test_pictures_with_attention_maps_are_wider(expert: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, source = expert
    words = ("detect", source, "--checkpoint", checkpoint)
    assert command(*words, "--out", tmp_path / "plain") == 0
    assert command(*words, "--out", tmp_path / "maps", "--attention") == 0
    plain = Image.open(tmp_path / "plain" / "known.png")
    maps = Image.open(tmp_path / "maps" / "known.png")
    assert plain.width < maps.width


@pytest.mark.parametrize("size", [(1, 20_000), (5_000, 1)])
def test_thin_images_are_drawn(
    expert: tuple[Path, Path], tmp_path: Path, size: tuple[int, int]
) -> None:
    checkpoint, _ = expert
    Image.new("RGB", size).save(tmp_path / "thin.png")
    words = ("--checkpoint", checkpoint, "--out", tmp_path / "out")
    assert command("detect", tmp_path / "thin.png", *words) == 0
    assert (tmp_path / "out" / "thin.png").is_file()
    assert len(read_rows(tmp_path / "out")) == 1


def test_detect_filters_by_score_and_can_join_layers(
    expert: tuple[Path, Path], tmp_path: Path
) -> None:
    checkpoint, source = expert

    def count_objects(*options: str) -> int:
        out = ("--out", tmp_path / "out", "--overwrite")
        assert command("detect", source, "--checkpoint", checkpoint, *out, *options) == 0
        (row,) = read_rows(tmp_path / "out")
        return len(row["objects"])

    true_objects = len(draw_shapes(DATA.shapes, (8, 4)).label)
    assert count_objects("--score", "1") == 0
    assert count_objects("--score", "0") == MODEL.queries
    assert count_objects("--nms") == true_objects
    assert count_objects("--score", "0", "--nms") <= 2 * MODEL.queries


def test_a_split_is_scored_as_in_validation(run: Path, tmp_path: Path, capsys: Any) -> None:
    known = ("--checkpoint", run / "last.ckpt")
    assert command("detect", *known, "--split", "val", "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "shapes: val: 6 images" in printed
    assert "AP50 " in printed
    result = json.loads((tmp_path / "average_precision.json").read_text())
    logged = pd.read_csv(run / "csv" / "metrics.csv")["val/AP50"].dropna()
    assert result["AP50"] == pytest.approx(logged.iloc[-1], abs=1e-6)
    assert len(read_rows(tmp_path)) == 6
    assert len(list(tmp_path.glob("val_*.png"))) == 6


def test_a_voc_folder_is_scored(expert: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    checkpoint, source = expert
    for part in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "JPEGImages" / "known.png").write_bytes(source.read_bytes())
    (tmp_path / "ImageSets/Main/test.txt").write_text("known\n")
    truth = draw_shapes(DATA.shapes, (8, 4))
    objects = []
    for label, box in zip(truth.label.tolist(), truth.box.tolist(), strict=True):
        objects.append((LABELS[label], *box))
    (tmp_path / "Annotations" / "known.xml").write_text(voc_annotation(*objects))
    assert command("detect", tmp_path, "--checkpoint", checkpoint, "--split", "test") == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}: test: 1 images, {len(objects)} objects" in out
    assert "AP50 1.000" in out


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
    count = len(detected.label)
    assert decoder.shape == (count, 4, 4)
    assert encoder.shape == (count, 4, 4)
    torch.testing.assert_close(decoder.sum((1, 2)), torch.ones(count))

    with recorded_weights(model) as record:
        after = model(batch.pixels)
    weights = record["encoder.layers.0.attention.sublayer"][0][0].mean(0)  # [L, L]
    x, y = detected.box[0].view(2, 2).mean(0).tolist()
    row = int(y / SIZE * 4)
    column = int(x / SIZE * 4)
    torch.testing.assert_close(encoder[0].flatten(), weights[4 * row + column])
    assert torch.equal(after.logit, before.logit)
