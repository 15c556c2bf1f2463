"""Scenes that differ from the training scenes of a model, forecasts that are not finite, and files with changed bytes."""

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
from support.uses import Case, Guard, cut

import trajformer
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.resample import resample_scene
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

SPEC, CHECKPOINT = "trajformer/scenes/spec.py", "trajformer/recipes/checkpoint.py"
COMPARED = Guard(SPEC, "    if not differ:\n", "    if True:\n")
FINITE_CHECK = "if unusable := forecast.find_not_finite(batch.observation):"
FIRST = Guard(
    "trajformer/evaluation/evaluate.py",
    'check_scenes(spec, first, scenes.root, "its first scene has")',
    "pass",
)
FINITE = Guard("trajformer/evaluation/evaluate.py", FINITE_CHECK, "if unusable := '':")
ZIP = Guard(CHECKPOINT, "if archive.testzip() is not None:")
SAFE = Guard(CHECKPOINT, "!= int(expected, 16):", "!= int(expected, 16) and False:")
CRC = Guard("trajformer/scenes/manifest.py", "if head and zlib.crc32", "if False and zlib.crc32")
CLOCKS = Guard("trajformer/training/forecasting.py", "if len(clocks) > 1:")
TYPE = Guard(SPEC, "if value is not None and type(value)", "if False and type(value)")
STEPS = Guard("trajformer/scenes/resample.py", "if not 0 < number <= min(limit, MAX_STEPS):")
OCCUPIED = Guard("trajformer/scenes/resample.py", "any(out.iterdir())", "False")
INSIDE = Guard("trajformer/scenes/resample.py", "if out.resolve().is_relative_to(store.resolve()):")
RESAMPLED = Guard("data_prep/engine/prepare.py", "if (store / record).exists():")
DRAWN_CHECK = (
    "if not (np.isfinite(forecast.position).all() and np.isfinite(forecast.probability).all()):"
)
DRAWN = Guard("trajformer/plotting/forecasts.py", DRAWN_CHECK)
SPLIT = Guard(SPEC, "return other_set or same_split(self.split, scene.split)", "return False")
IN_BATCH = Guard(
    "trajformer/plotting/scene.py", "if scene.scene_id not in batch.observation.scene_id:"
)
OTHER_SPLIT = Guard("trajformer/cli/models.py", "if not same and", "if False and")
WITHOUT_MAP = Guard(SPEC, "if expected.has_map and with_map < total:")
WITH_MAP = Guard(SPEC, "if expected.has_map is False and with_map:")
ANY_CLOCK = Guard("trajformer/data/batch.py", "if other.clock != first.clock:")
HORIZON = Guard(
    "trajformer/evaluation/evaluate.py",
    "except TrajformerError as error:",
    "except ZeroDivisionError as error:",
)
FORECASTS, CLI_STORE = "trajformer/evaluation/forecast_file.py", "trajformer/cli/store.py"
KNOWN_CLOCK = Guard(
    FORECASTS,
    "except (ValueError, TrajformerError) as error:",
    "except ZeroDivisionError as error:",
)
ANY_OPTION, HAS_STORE = (
    Guard(CLI_STORE, "if not clock:"),
    Guard(CLI_STORE, "if not store.is_dir():"),
)
PERIOD = Guard(CLI_STORE, '"--period-s", type=PositiveFloat', '"--period-s", type=float')
FINITE_FILE = Guard(
    FORECASTS, "if not np.isfinite(position).all() or not np.isfinite(probability).all():"
)
OPENS = Guard(CHECKPOINT, "except SafetensorError as error:", "except ZeroDivisionError as error:")
DIFFERS = Guard("trajformer/scenes/manifest.py", "if entry[key] != listed[path][key]]", "if False]")
SHARED = Guard(
    "trajformer/training/forecasting.py", "            if shared:\n", "            if False:\n"
)


def other(
    change: Callable[[Scene], Scene], select: Callable[[int], bool] = lambda number: True
) -> Callable[[], None]:
    """Write the store other/: the scenes of store/, the selected ones changed."""

    def write() -> None:
        for split in ("train", "val"):
            scenes = [
                change(scene) if select(n) else scene
                for n, scene in enumerate(SceneStore("store", split))
            ]
            write_shard(shard_path(Path("other"), split, 0), scenes, ShardInfo("argoverse2", split))
        write_manifest(Path("other"))

    return write


def same_ids() -> None:
    """Write the store other/ with a split train that has the ids of val at other places."""
    for split, shift in (("train", 900.0), ("val", 0.0)):
        scenes = [
            replace(scene, split=split, origin=scene.origin + shift)
            for scene in SceneStore("store", "val")
        ]
        write_shard(shard_path(Path("other"), split, 0), scenes, ShardInfo("argoverse2", split))
    write_manifest(Path("other"))


def without_map(scene: Scene) -> Scene:
    none = {
        name: getattr(scene, name)[:0]
        for name in ("polyline_id", "polyline_kind", "polyline_flags", "point", "edge_kind")
    }
    return replace(
        scene, **none, polyline_offset=np.zeros(1, np.int32), edge=np.zeros((2, 0), np.int32)
    )


def with_nan() -> None:
    """The checkpoint nan.ckpt with a weight that is not a number."""
    raw = torch.load("run/best.ckpt", weights_only=True)
    next(value for name, value in raw["state_dict"].items() if name.endswith("weight"))[0] = (
        torch.nan
    )
    torch.save(raw, "nan.ckpt")


def trained_on(**values: Any) -> Callable[[], None]:
    """The checkpoint file.ckpt with other properties of the training scenes; None removes all properties."""

    def write() -> None:
        raw = torch.load("run/best.ckpt", weights_only=True)
        properties = raw["trajformer"].pop("trained_on") | values
        raw["trajformer"] |= {} if None in values.values() else {"trained_on": properties}
        torch.save(raw, "file.ckpt")

    return write


def flip(path: str, text: bytes | None = None) -> Callable[[], object]:
    """Change a bit in the middle of a file, or in the first byte of a text."""

    def change() -> None:
        content = bytearray(Path(path).read_bytes())
        content[len(content) // 2 if text is None else content.index(text)] ^= 1
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
    pq.write_table(
        pq.read_table("forecasts.parquet").replace_schema_metadata({"trajformer": "{"}), "file"
    )


def score_in_python() -> object:
    model, recipe = trajformer.load_checkpoint("run/best.ckpt")
    return trajformer.evaluate(model, trajformer.SceneStore("other", "val"), recipe.data.batch)  # type: ignore[attr-defined]


def draw_another_scene() -> object:
    first, second = SceneStore("store", "val")[0], SceneStore("store", "val")[1]
    batch = trajformer.collate([second])
    return trajformer.plot_scene(
        first, trajformer.build_model("se2former_argoverse2").eval()(batch.observation), batch
    )


def draw_in_python() -> object:
    scene = SceneStore("store", "val")[0]
    batch = trajformer.collate([scene])
    forecast = trajformer.build_model("se2former_argoverse2").eval()(batch.observation)
    return trajformer.plot_scene(
        scene, replace(forecast, position=forecast.position * torch.nan), batch
    )


FAST, SLOW = (other(partial(replace, period_s=period)) for period in (0.05, 0.5))
SHORT_PAST, SHORT = (
    other(partial(resample_scene, num_history=20)),
    other(partial(resample_scene, num_future=30)),
)
MIXED = other(partial(replace, period_s=0.05), lambda number: number == 1)
NO_MAP, SOME_MAPS = other(without_map), other(without_map, lambda number: number < 2)
SCORE, SCORE_OTHER = (
    "evaluate --store store --checkpoint",
    "evaluate --store other --checkpoint run/best.ckpt",
)
PREDICT_OTHER = "predict --store other --checkpoint run/best.ckpt --out f.parquet"
DRAW_OTHER = "plot other --forecasts forecasts.parquet --out p"
TRAIN, RESUME = (
    "train --config recipe.yaml --out r",
    "train --config recipe.yaml --out run --resume",
)
ON_OTHER = "--data.train other --data.val other"
RESAMPLE = "store resample store"
FILE, WEIGHTS = (
    "evaluate --store store --checkpoint file.ckpt",
    "evaluate --store store --checkpoint file.safetensors",
)
DRAW_FILE, PREDICT_NAN = (
    "plot store --forecasts file --out p",
    "predict --checkpoint nan.ckpt --store store --out f.parquet",
)
NOT_FINITE, NOT_READABLE = (
    "scene raw-val-0: track .*: the forecast has NaN or infinity",
    "not a readable checkpoint",
)
MANIFEST = "manifest.json: no readable manifest .its checksum differs"
SHARED_SCENES = (
    "warning: data.val: store: split 'train': 3 of 3 validation scenes are also training scenes"
)
LONGER, PREPARE_HALF = (
    "num_future: 31 steps of 0.2 s, expected 1 to 30",
    "preprocess argoverse2 raw half --workers 1",
)
ROADS_AND_CROWDS = (
    "0.1 and num_history 50 and num_future 60, but the training scenes have 0.4 and 8 and 12"
)
CONVERT = "convert it: trajformer store resample other OUT"
AT_20_HZ = (
    r"split '\w+': period_s 0.05, but the training scenes .*have 0.1; too short to be converted"
)
AT_2_HZ = f"period_s 0.5, but the training scenes have 0.1; {CONVERT} --period-s 0.1 --num-history 50 --num-future 60$"


def refused(
    use: str, run: Any, prepare: Callable[[], object], line: str, guard: Guard | None = COMPARED
) -> Case:
    return Case(use, run, line, prepare, guard)


def accepted(
    use: str, run: Any, prepare: Callable[[], object], line: str, guard: Guard | None = None
) -> Case:
    return Case(use, run, line, prepare, guard, status=0)


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
        "forecasts.parquet: forecasts of split 'val', but the scenes of other are of split 'train'; give --split",
        OTHER_SPLIT,
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
        CLOCKS,
    ),
    refused("score scenes of two clocks", SCORE_OTHER, MIXED, "period, H, F and unit", ANY_CLOCK),
    refused(
        "score scenes of two clocks in two batches",
        "evaluate --store other --model constant_velocity --batch-size 1",
        MIXED,
        "other: split 'val': period_s 0.05, but its first scene has 0.1; ",
        FIRST,
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
        "score with a checkpoint of an earlier version", FILE, trained_on(split=None), "file.ckpt "
    ),
    refused(
        "score another horizon with a checkpoint of an earlier version",
        "evaluate --checkpoint file.ckpt --store other",
        lambda: (trained_on(split=None)(), SHORT()),
        "other: split 'val' does not fit the model: scenes have 30 future steps, the model predicts 60",
        HORIZON,
    ),
    refused(
        "draw with a damaged clock",
        DRAW_FILE,
        damaged_clock,
        "file: damaged properties of the scenes",
        KNOWN_CLOCK,
    ),
    refused(
        "a word as the clock",
        FILE,
        trained_on(period_s="slow"),
        "recipe and .* do not fit.*: 'slow', expected float",
        TYPE,
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
        ANY_OPTION,
    ),
    refused(
        "resample to a longer past",
        f"{RESAMPLE} half --num-history 80",
        list,
        "num_history: 80 .* expected 1 to 50",
        STEPS,
    ),
    refused(
        "resample to a longer horizon",
        f"{RESAMPLE} half --period-s 0.2 --num-future 31",
        list,
        LONGER,
        STEPS,
    ),
    refused(
        "resample into a folder with files",
        f"{RESAMPLE} raw --period-s 0.2",
        list,
        "raw: exists already",
        OCCUPIED,
    ),
    refused(
        "resample into the store",
        f"{RESAMPLE} store/half --period-s 0.2",
        list,
        "must lie outside of store",
        INSIDE,
    ),
    refused(
        "resample a missing store",
        "store resample nowhere half --period-s 0.2",
        list,
        "nowhere: no such store",
        HAS_STORE,
    ),
    Case(
        "resample to a period of zero",
        f"{RESAMPLE} half --period-s 0",
        "period_s",
        guard=PERIOD,
        status=2,
    ),
    refused(
        "resample to an infinite period",
        f"{RESAMPLE} half --period-s inf",
        list,
        "num_future: 0 steps",
        STEPS,
    ),
    refused(
        "resample to no period",
        f"{RESAMPLE} half --period-s 1e-320",
        list,
        "num_history: 10001 steps",
        STEPS,
    ),
    refused(
        "prepare raw files into a resampled store",
        PREPARE_HALF,
        resampled,
        "half: was made by .*store resample",
        RESAMPLED,
    ),
    # ---- forecasts that are not finite
    refused(
        "score weights that are not numbers",
        f"{SCORE} nan.ckpt",
        with_nan,
        f"store: split 'val': {NOT_FINITE}",
        FINITE,
    ),
    refused(
        "forecast with weights that are not numbers", PREDICT_NAN, with_nan, NOT_FINITE, FINITE
    ),
    refused(
        "draw a forecast that is not finite in Python",
        draw_in_python,
        list,
        "track .* in scene 'raw-val-0' has NaN",
        DRAWN,
    ),
    refused(
        "draw a forecast of another scene in Python",
        draw_another_scene,
        list,
        "'raw-val-0' is not in the batch",
        IN_BATCH,
    ),
    refused(
        "draw a forecast file that is not finite",
        DRAW_FILE,
        nan_forecasts,
        "file: forecast of track .*has NaN",
        FINITE_FILE,
    ),
    # ---- changed bytes
    refused(
        "score a changed checkpoint",
        f"{SCORE} run/best.ckpt",
        flip("run/best.ckpt"),
        f"best.ckpt: {NOT_READABLE}",
        ZIP,
    ),
    refused(
        "resume from a changed checkpoint",
        RESUME,
        flip("run/last.ckpt"),
        f"last.ckpt: {NOT_READABLE}",
        ZIP,
    ),
    refused(
        "score changed safetensors",
        WEIGHTS,
        converted(flip("file.safetensors")),
        f"tensors: {NOT_READABLE}",
        SAFE,
    ),
    refused(
        "score truncated safetensors",
        WEIGHTS,
        converted(cut("file.safetensors")),
        f"tensors: {NOT_READABLE}",
        OPENS,
    ),
    refused(
        "print a changed manifest",
        "store info store",
        flip("store/manifest.json", b"argoverse2"),
        MANIFEST,
        CRC,
    ),
    refused(
        "verify a changed shard",
        "store verify store",
        flip("store/val/00000.arrow"),
        "arrow: checksum differs from",
        DIFFERS,
    ),
    refused(
        "score a protocol with a model of its cases",
        "benchmark interaction --data interaction --checkpoint file.ckpt",
        trained_on(split="val"),
        "file.ckpt: the model was trained on split 'val', which is scored",
        Guard("trajformer/cli/protocols.py", "_refuse_training_split(predictors, _CASES)", "pass"),
    ),
    # ---- starting from a checkpoint
    accepted(
        "train further with another number of heads",
        f"{TRAIN} --init run/best.ckpt --model.mmtransformer.block.heads 4",
        list,
        "warning: init: run/best.ckpt: was trained with model.mmtransformer.block.heads 2, not 4",
        Guard(
            "trajformer/training/forecasting.py", "if changes and getattr(", "if False and getattr("
        ),
    ),
    # ---- splits and maps
    accepted(
        "validate on training scenes",
        f"{TRAIN} --data.val_split train",
        list,
        SHARED_SCENES,
        SHARED,
    ),
    accepted(
        "score the training split",
        f"{SCORE} run/best.ckpt --split train",
        list,
        r"ckpt \(on its training split\)",
        SPLIT,
    ),
    accepted("score another split", f"{SCORE} run/best.ckpt", list, r"\A(?!.*training split)"),
    accepted(
        "score scenes without maps",
        SCORE_OTHER,
        SOME_MAPS,
        r"\A(?!(.*warning){2})(?s:.*)warning: other: split 'val': 2 of 3 scenes have no map, but the training scenes have maps",
        WITHOUT_MAP,
    ),
    accepted(
        "forecast scenes without maps",
        PREDICT_OTHER,
        NO_MAP,
        "3 of 3 scenes have no map",
        WITHOUT_MAP,
    ),
    accepted(
        "score scenes with maps, trained without",
        FILE,
        trained_on(has_map=False),
        "3 of 3 scenes have a map",
        WITH_MAP,
    ),
    accepted(
        "validate on scenes without maps",
        f"{TRAIN} --data.val other",
        SOME_MAPS,
        "data.val: .*: 2 of 3 scenes have no",
        WITHOUT_MAP,
    ),
]
