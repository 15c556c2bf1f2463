"""Scenes unlike the training scenes, forecasts that are not finite, files with changed bytes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from support.cli import run
from support.uses import Case, cut

import trajformer
from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.resample import resample_scene
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore


def write_other(split: str, scenes: list[Scene]) -> None:
    """Write a split of the store other/."""
    write_shard(shard_path(Path("other"), split, 0), scenes, ShardInfo("argoverse2", split))


def other(
    change: Callable[[Scene], Scene], select: Callable[[int], bool] = lambda number: True
) -> Callable[[], None]:
    """Write the store other/: the scenes of store/, the selected ones changed."""

    def write() -> None:
        for split in ("train", "val"):
            scenes = list(SceneStore("store", split))
            for number, scene in enumerate(scenes):
                if select(number):
                    scenes[number] = change(scene)
            write_other(split, scenes)
        write_manifest(Path("other"))

    return write


def same_ids() -> None:
    """Write the store other/ with a split train that has the ids of val at other places."""
    validation = list(SceneStore("store", "val"))
    moved = [replace(scene, split="train", origin=scene.origin + 900.0) for scene in validation]
    write_other("train", moved)
    write_other("val", validation)
    write_manifest(Path("other"))


def without_map(scene: Scene) -> Scene:
    return replace(
        scene,
        polyline_id=scene.polyline_id[:0],
        polyline_kind=scene.polyline_kind[:0],
        polyline_flags=scene.polyline_flags[:0],
        polyline_offset=np.zeros(1, np.int32),
        point=scene.point[:0],
        edge=np.zeros((2, 0), np.int32),
        edge_kind=scene.edge_kind[:0],
    )


def with_nan() -> None:
    """The checkpoint nan.ckpt with a weight that is not a number."""
    raw = torch.load("run/best.ckpt", weights_only=True)
    weights = raw["state_dict"]
    first = next(name for name in weights if name.endswith("weight"))
    weights[first][0] = torch.nan
    torch.save(raw, "nan.ckpt")


def trained_on(**values: Any) -> Callable[[], None]:
    """The checkpoint file.ckpt with other properties of the training scenes."""

    def write() -> None:
        raw = torch.load("run/best.ckpt", weights_only=True)
        raw["trajformer"]["trained_on"] |= values
        torch.save(raw, "file.ckpt")

    return write


def without_properties() -> None:
    """The checkpoint file.ckpt with unknown training scenes, as converted weights have."""
    raw = torch.load("run/best.ckpt", weights_only=True)
    raw["trajformer"]["trained_on"] = {}
    torch.save(raw, "file.ckpt")


def without_properties_on_short_scenes() -> None:
    without_properties()
    SHORT()


def flip(path: str, text: bytes | None = None) -> Callable[[], object]:
    """Change a bit in the middle of a file, or in the first byte of a text."""

    def change() -> None:
        content = bytearray(Path(path).read_bytes())
        index = len(content) // 2
        if text is not None:
            index = content.index(text)
        content[index] ^= 1
        Path(path).write_bytes(content)

    return change


def nan_forecasts() -> None:
    """The forecasts "file" without numbers."""
    table = pd.read_parquet("forecasts.parquet")
    x = [row * np.nan for row in table.predicted_trajectory_x]
    table.assign(predicted_trajectory_x=x).to_parquet("file")


def converted(*changes: Callable[[], object]) -> Callable[[], None]:
    """The checkpoint file.safetensors of run/best.ckpt, and then changes."""

    def write() -> None:
        assert run("weights", "convert", "trajformer", "run/best.ckpt", "file.safetensors") == 0
        for change in changes:
            change()

    return write


def resampled() -> None:
    """The store half/ at 5 Hz."""
    assert run("store", "resample", "store", "half", "--period-s", 0.2) == 0


def damaged_clock() -> None:
    """The forecasts "file" with metadata that are not JSON."""
    table = pq.read_table("forecasts.parquet")
    pq.write_table(table.replace_schema_metadata({"trajformer": "{"}), "file")


def score_in_python() -> object:
    model, recipe = trajformer.load_checkpoint("run/best.ckpt")
    scenes = trajformer.SceneStore("other", "val")
    return trajformer.evaluate(model, scenes, recipe.data.batch)  # type: ignore[attr-defined]


def forecast(batch: SceneBatch) -> Forecast:
    """The forecast of an untrained model."""
    model = trajformer.build_model("se2former_argoverse2").eval()
    return model(batch.observation)


def draw_another_scene() -> object:
    first, second = SceneStore("store", "val")[0], SceneStore("store", "val")[1]
    batch = trajformer.collate([second])
    return trajformer.plot_scene(first, forecast(batch), batch)


def draw_in_python() -> object:
    scene = SceneStore("store", "val")[0]
    batch = trajformer.collate([scene])
    finite = forecast(batch)
    not_finite = replace(finite, position=finite.position * torch.nan)
    return trajformer.plot_scene(scene, not_finite, batch)


FAST = other(partial(replace, period_s=0.05))
SLOW = other(partial(replace, period_s=0.5))
SHORT_PAST = other(partial(resample_scene, num_history=20))
SHORT = other(partial(resample_scene, num_future=30))
MIXED = other(partial(replace, period_s=0.05), lambda number: number == 1)
NO_MAP = other(without_map)
SOME_MAPS = other(without_map, lambda number: number < 2)
SCORE = "evaluate --store store --checkpoint"
SCORE_OTHER = "evaluate --store other --checkpoint run/best.ckpt"
PREDICT_OTHER = "predict --store other --checkpoint run/best.ckpt --out f.parquet"
DRAW_OTHER = "plot other --forecasts forecasts.parquet --out p"
TRAIN = "train --config recipe.yaml --out r"
RESUME = "train --config recipe.yaml --out run --resume"
ON_OTHER = "--data.train other --data.val other"
RESAMPLE = "store resample store"
FILE = "evaluate --store store --checkpoint file.ckpt"
WEIGHTS = "evaluate --store store --checkpoint file.safetensors"
DRAW_FILE = "plot store --forecasts file --out p"
PREDICT_NAN = "predict --checkpoint nan.ckpt --store store --out f.parquet"
NOT_FINITE = "scene raw-val-0: track .*: the forecast has NaN or infinity"
NOT_READABLE = "not a readable checkpoint"
MANIFEST = "manifest.json: no readable manifest .its checksum differs"
SHARED_SCENES = (
    "warning: data.val: store: split 'train': 3 of 3 validation scenes are also training scenes"
)
LONGER = "num_future: 31 steps of 0.2 s, expected 1 to 30"
PREPARE_HALF = "preprocess argoverse2 raw half --workers 1"
ROADS_AND_CROWDS = (
    "0.1 and num_history 50 and num_future 60, but the training scenes have 0.4 and 8 and 12"
)
CONVERT = "convert it: trajformer store resample other OUT"
AT_20_HZ = (
    r"split '\w+': period_s 0.05, but the training scenes .*have 0.1; too short to be converted"
)
AT_2_HZ = (
    f"period_s 0.5, but the training scenes have 0.1; {CONVERT}"
    " --period-s 0.1 --num-history 50 --num-future 60$"
)


def refused(use: str, run: Any, prepare: Callable[[], object], line: str) -> Case:
    return Case(use, run, line, prepare)


def accepted(use: str, run: Any, prepare: Callable[[], object], line: str) -> Case:
    return Case(use, run, line, prepare, status=0)


CASES = [
    # ---- clock, horizon and unit
    refused("score scenes at 20 Hz", SCORE_OTHER, FAST, f"other: {AT_20_HZ}"),
    refused("score scenes at 2 Hz", SCORE_OTHER, SLOW, AT_2_HZ),
    refused(
        "score scenes of a shorter past",
        SCORE_OTHER,
        SHORT_PAST,
        "num_history 20, but the training scenes have 50",
    ),
    refused(
        "score scenes of a shorter horizon",
        SCORE_OTHER,
        SHORT,
        "num_future 30, but the training scenes have 60",
    ),
    refused(
        "forecast scenes of a shorter horizon",
        PREDICT_OTHER,
        SHORT,
        "but the training scenes have 60; too short to be converted",
    ),
    refused(
        "draw forecasts on scenes at 20 Hz",
        DRAW_OTHER,
        FAST,
        "0.05, but the scenes of the forecasts have 0.1",
    ),
    refused(
        "draw forecasts on a shorter horizon",
        DRAW_OTHER,
        SHORT,
        "num_future 30, but the scenes of the forecasts have 60",
    ),
    accepted(
        "draw forecasts on a shorter past",
        f"{DRAW_OTHER}/a.png --split val",
        SHORT_PAST,
        "^p/a.png",
    ),
    refused(
        "draw forecasts on scenes of the same ids of another split",
        f"{DRAW_OTHER} --split train",
        same_ids,
        "forecasts.parquet: forecasts of split 'val', but the scenes of other are of split"
        " 'train'; give --split",
    ),
    accepted(
        "draw forecasts on the split that they are of", DRAW_OTHER, same_ids, "p/raw-val-0.png"
    ),
    refused("validate on scenes at 20 Hz", f"{TRAIN} --data.val other", FAST, f"other: {AT_20_HZ}"),
    refused(
        "train further at 20 Hz",
        f"{TRAIN} {ON_OTHER} --init run/best.ckpt",
        FAST,
        "of run/best.ckpt have 0.1; too",
    ),
    refused("resume on scenes at 20 Hz", f"{RESUME} {ON_OTHER}", FAST, AT_20_HZ),
    refused(
        "train on scenes of two clocks",
        f"{TRAIN} {ON_OTHER}",
        MIXED,
        "data.train: other: .*0.1.*and.*0.05",
    ),
    refused("score scenes of two clocks", SCORE_OTHER, MIXED, "period, H, F and unit"),
    refused(
        "score scenes of two clocks in two batches",
        "evaluate --store other --model constant_velocity --batch-size 1",
        MIXED,
        "other: split 'val': period_s 0.05, but its first scene has 0.1; ",
    ),
    refused(
        "score roads with a model of crowds",
        f"{SCORE} pretrained:crowd_eth_ucy/eth",
        list,
        ROADS_AND_CROWDS,
    ),
    refused(
        "score metres with a model of pixels",
        FILE,
        trained_on(unit="px"),
        "unit m, but .* px; use data in px, or a model for m",
    ),
    refused("score scenes at 20 Hz in Python", score_in_python, FAST, AT_20_HZ),
    refused(
        "a converted checkpoint knows its clock",
        f"{WEIGHTS} --store other",
        converted(FAST),
        AT_20_HZ,
    ),
    accepted(
        "score with weights whose training scenes are unknown",
        FILE,
        without_properties,
        "file.ckpt ",
    ),
    refused(
        "score another horizon with weights whose training scenes are unknown",
        "evaluate --checkpoint file.ckpt --store other",
        without_properties_on_short_scenes,
        "other: split 'val' does not fit the model: scenes have 30 future steps, the model"
        " predicts 60",
    ),
    refused(
        "draw with a damaged clock",
        DRAW_FILE,
        damaged_clock,
        "file: damaged properties of the scenes",
    ),
    refused(
        "a word as the clock",
        FILE,
        trained_on(period_s="slow"),
        "recipe and .* do not fit.*: 'slow', expected float",
    ),
    # ---- resampling
    accepted(
        "score a resampled store",
        "evaluate --model constant_velocity --store half",
        resampled,
        "minADE6",
    ),
    refused(
        "resample to nothing",
        f"{RESAMPLE} half",
        list,
        "one of --period-s, --num-history and --num-future",
    ),
    refused(
        "resample to a longer past",
        f"{RESAMPLE} half --num-history 80",
        list,
        "num_history: 80 .* expected 1 to 50",
    ),
    refused(
        "resample to a longer horizon",
        f"{RESAMPLE} half --period-s 0.2 --num-future 31",
        list,
        LONGER,
    ),
    refused(
        "resample into a folder with files",
        f"{RESAMPLE} raw --period-s 0.2",
        list,
        "raw: exists already",
    ),
    refused(
        "resample into the store",
        f"{RESAMPLE} store/half --period-s 0.2",
        list,
        "must lie outside of store",
    ),
    refused(
        "resample a missing store",
        "store resample nowhere half --period-s 0.2",
        list,
        "nowhere: no such store",
    ),
    Case(
        "resample to a period of zero", f"{RESAMPLE} half --period-s 0", "--period-s: '0'", status=2
    ),
    refused(
        "resample to an infinite period",
        f"{RESAMPLE} half --period-s inf",
        list,
        "num_future: 0 steps",
    ),
    refused(
        "resample to no period",
        f"{RESAMPLE} half --period-s 1e-320",
        list,
        "num_history: 10001 steps",
    ),
    refused(
        "prepare raw files into a resampled store",
        PREPARE_HALF,
        resampled,
        "half: was made by .*store resample",
    ),
    # ---- forecasts that are not finite
    refused(
        "score weights that are not numbers",
        f"{SCORE} nan.ckpt",
        with_nan,
        f"store: split 'val': {NOT_FINITE}",
    ),
    refused("forecast with weights that are not numbers", PREDICT_NAN, with_nan, NOT_FINITE),
    refused(
        "draw a forecast that is not finite in Python",
        draw_in_python,
        list,
        "track .* in scene 'raw-val-0' has NaN",
    ),
    refused(
        "draw a forecast of another scene in Python",
        draw_another_scene,
        list,
        "'raw-val-0' is not in the batch",
    ),
    refused(
        "draw a forecast file that is not finite",
        DRAW_FILE,
        nan_forecasts,
        "file: forecast of track .*has NaN",
    ),
    # ---- changed bytes
    refused(
        "score a changed checkpoint",
        f"{SCORE} run/best.ckpt",
        flip("run/best.ckpt"),
        f"best.ckpt: {NOT_READABLE}",
    ),
    refused(
        "resume from a changed checkpoint",
        RESUME,
        flip("run/last.ckpt"),
        f"last.ckpt: {NOT_READABLE}",
    ),
    refused(
        "score changed safetensors",
        WEIGHTS,
        converted(flip("file.safetensors")),
        f"tensors: {NOT_READABLE}",
    ),
    refused(
        "score truncated safetensors",
        WEIGHTS,
        converted(cut("file.safetensors")),
        f"tensors: {NOT_READABLE}",
    ),
    refused(
        "print a changed manifest",
        "store info store",
        flip("store/manifest.json", b"argoverse2"),
        MANIFEST,
    ),
    refused(
        "verify a changed shard",
        "store verify store",
        flip("store/val/00000.arrow"),
        "arrow: checksum differs from",
    ),
    refused(
        "score a protocol with a model of its cases",
        "benchmark interaction --data interaction --checkpoint file.ckpt",
        trained_on(split="val"),
        "file.ckpt: the model was trained on split 'val', which is scored",
    ),
    # ---- starting from a checkpoint
    accepted(
        "train further with another number of heads",
        f"{TRAIN} --init run/best.ckpt --model.mmtransformer.block.heads 4",
        list,
        "warning: init: run/best.ckpt: was trained with model.mmtransformer.block.heads 2, not 4",
    ),
    # ---- splits and maps
    accepted("validate on training scenes", f"{TRAIN} --data.val_split train", list, SHARED_SCENES),
    accepted(
        "score the training split",
        f"{SCORE} run/best.ckpt --split train",
        list,
        r"ckpt \(on its training split\)",
    ),
    accepted("score another split", f"{SCORE} run/best.ckpt", list, r"\A(?!.*training split)"),
    accepted(
        "score scenes without maps",
        SCORE_OTHER,
        SOME_MAPS,
        r"\A(?!(.*warning){2})(?s:.*)warning: other: split 'val': 2 of 3 scenes have no map,"
        " but the training scenes have maps",
    ),
    accepted("forecast scenes without maps", PREDICT_OTHER, NO_MAP, "3 of 3 scenes have no map"),
    accepted(
        "score scenes with maps, trained without",
        FILE,
        trained_on(has_map=False),
        "3 of 3 scenes have a map",
    ),
    accepted(
        "score scenes with lanes, trained without",
        FILE,
        trained_on(has_lanes=False),
        "the maps have lanes, but those of the training scenes have none",
    ),
    accepted(
        "validate on scenes without maps",
        f"{TRAIN} --data.val other",
        SOME_MAPS,
        "data.val: .*: 2 of 3 scenes have no",
    ),
]
