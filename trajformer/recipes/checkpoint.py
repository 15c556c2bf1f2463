"""Checkpoints: plain tensors and plain values only; loading one never executes code from the file.

A run writes PyTorch files. A .safetensors file holds weights only, with the recipe in its header.
"""

import io
import json
import pickle
import warnings
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

import trajformer
from trajformer.data.sample import BatchConfig
from trajformer.errors import CheckpointError, TrajformerError
from trajformer.models.constant_velocity import (
    ConstantVelocityConfig,
    SampledConstantVelocityConfig,
)
from trajformer.models.forecaster import Forecaster, Predictor
from trajformer.recipes.choices import upgrade_recipe
from trajformer.recipes.names import PRETRAINED, checkpoint_file, pretrained_names
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.files import atomically
from trajformer.scenes.spec import DataSpec, check_scenes

R = TypeVar("R")
UNTRAINED: dict[str, Any] = {
    "constant_velocity": ConstantVelocityConfig(modes=6),
    "constant_velocity_sampled": SampledConstantVelocityConfig(),
}
CONFIG_KEY = "trajformer"
USED = "processor_seconds"  # of training until this checkpoint of a run
_PREFIX = "model."
_CHECKSUM = '\\"checksum\\": \\"{:08x}\\"'  # in the header of a .safetensors file: CRC-32 of the file with zeros here
_MAY_CHANGE = (
    "trainer",
    "first_stage",
    "init",
)  # these fields of a recipe may change when a run resumes,
_FIXED_DATA = (
    "train_split",
    "val_split",
    "limit_train",
    "branches",
    "learn_from",
    "batch",
)  # but of `data` these may not
SCHEMA_VERSION = 1  # of checkpoints; files without it have version 1
_MISFIT = (
    TrajformerError,
    RuntimeError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
_UNREADABLE = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    EOFError,
    OSError,
    AssertionError,
    *_MISFIT,
)


def describe(config: Any, trained_on: DataSpec = DataSpec()) -> dict[str, Any]:
    """Version, task, recipe and training scenes of a checkpoint as plain values."""
    plain = {
        "version": trajformer.__version__,
        "schema": SCHEMA_VERSION,
        "task": config.task,
        "config": to_plain(config),
    }
    return plain | {"trained_on": trained_on.to_plain()}


def load_checkpoint(path: Path | str, recipe: type[R] = TrainConfig) -> tuple[nn.Module, R]:  # type: ignore[assignment]
    """The model of a checkpoint, in evaluation mode on the CPU, and the recipe it was trained with, of class `recipe`.

    `path` is a file, or `pretrained:NAME` for weights that are part of trajformer. Raises CheckpointError: no such file, not a
    checkpoint of this project or of another task, or its weights do not fit its recipe.
    """
    return _build(path, _read(Path(path)), recipe)


def pick_device(accelerator: Literal["auto", "cpu", "gpu"]) -> torch.device:
    """The device of an `--accelerator`; "auto" is a GPU if there is one (TrajformerError: a GPU is requested and missing)."""
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise TrajformerError("no CUDA device here; use --accelerator cpu")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def load_predictor(
    source: Path | str,
    device: torch.device = torch.device("cpu"),
    targets: Literal["scored", "focal", "all"] = "scored",
    joint: bool = False,
) -> Predictor:
    """The model of a checkpoint, or a model without training by its name, ready to run on `device`.

    `source` is a checkpoint; or "constant_velocity", with five varied modes besides the plain one; or
    "constant_velocity_sampled", 20 directions drawn for each agent. `targets` are the agents that it predicts. With `joint`, it
    predicts joint futures of the whole scene, if it can do so from the same weights. Raises the errors of `load_checkpoint`.
    """
    if source in UNTRAINED:
        model, batch = UNTRAINED[str(source)].build(), BatchConfig()
    else:
        model, recipe = load_checkpoint(source, TrainConfig)
        batch = recipe.data.batch
    return Predictor(model.to(device).eval(), replace(batch, targets=targets), device, joint)


def _build(path: Path | str, raw: dict[str, Any], recipe: type[R]) -> tuple[nn.Module, R]:
    expected: Any = recipe
    try:
        task = raw[CONFIG_KEY].get("task", TrainConfig.task)
        if task != expected.task:
            raise CheckpointError(
                f"{path}: holds a model for {task}, expected one for {expected.task}"
            )
        plain = raw[CONFIG_KEY]["config"]
        config = from_plain(recipe, upgrade_recipe(plain))
        model = config.build_model()
        weights = {
            name[len(_PREFIX) :]: v
            for name, v in raw["state_dict"].items()
            if name.startswith(_PREFIX)
        }
        model.load_state_dict(weights)
        if isinstance(model, Forecaster):
            model.batch_config = config.data.batch
            model.trained_on = DataSpec.from_plain(
                raw[CONFIG_KEY].get("trained_on") or {"split": config.data.train_split}
            )
    except CheckpointError:
        raise
    except _MISFIT as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"{path}: recipe and weights do not fit this software: {reason}"
        ) from error
    return model.eval(), config


def _read(path: Path) -> dict[str, Any]:
    file = checkpoint_file(path)
    if not file.is_file():
        last = (
            f"a folder; its checkpoint is {path / 'last.ckpt'}"
            if (file / "last.ckpt").is_file()
            else "not a file"
        )
        missing = "no such checkpoint" + f"; did you mean {PRETRAINED}{path}?" * (
            str(path) in pretrained_names()
        )
        raise CheckpointError(f"{path}: {last if file.exists() else missing}")
    try:
        if file.suffix == ".safetensors":
            raw: Any = _read_safetensors(file)
        else:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    if archive.testzip() is not None:  # torch.load ignores checksums
                        raise ValueError("a checksum differs")
            with warnings.catch_warnings(
                action="ignore"
            ):  # warnings about pickles, which are refused
                raw = torch.load(file, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise CheckpointError(
            f"{path}: not a readable checkpoint (damaged, or not plain tensors)"
        ) from error
    if (
        not isinstance(raw, dict)
        or not isinstance(raw.get(CONFIG_KEY), dict)
        or "state_dict" not in raw
    ):
        raise CheckpointError(f"{path}: not a trajformer checkpoint (no '{CONFIG_KEY}' entry)")
    schema = raw[CONFIG_KEY].get("schema", 1)
    if schema != SCHEMA_VERSION:
        versions = f"schema version {schema}, this software ({trajformer.__version__}) reads {SCHEMA_VERSION}"
        raise CheckpointError(
            f"{path}: {versions}: made by version {raw[CONFIG_KEY].get('version')}, install that version"
        )
    return raw


def _read_safetensors(path: Path) -> dict[str, Any]:
    """The same structure as the file of a run."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise CheckpointError(
            f"{path}: needs the package safetensors (pip install safetensors)"
        ) from error
    try:
        with safe_open(path, "pt") as file:
            head = (file.metadata() or {}).get(CONFIG_KEY)
            tensors = {_PREFIX + name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise ValueError(error) from error
    plain = {} if head is None else {CONFIG_KEY: json.loads(head)}
    if (expected := plain.get(CONFIG_KEY, {}).get("checksum")) is not None:
        content, present, blank = (
            path.read_bytes(),
            *(_CHECKSUM.format(n).encode() for n in (int(expected, 16), 0)),
        )
        if zlib.crc32(content.replace(present, blank, 1)) != int(expected, 16):
            raise ValueError("the checksum differs")
    return {"state_dict": tensors} | plain


def write_checkpoint(
    out: Path, recipe: Any, weights: dict[str, Tensor], trained_on: DataSpec = DataSpec()
) -> None:
    """Write a checkpoint without the state of a run, atomically; the suffix .safetensors selects that format."""
    head = describe(recipe, trained_on)
    weights = {
        name: tensor.clone().contiguous() for name, tensor in weights.items()
    }  # a view would save its whole storage
    with atomically(out) as temporary:
        if out.suffix == ".safetensors":
            from safetensors.torch import save

            content = save(weights, {CONFIG_KEY: json.dumps(head | {"checksum": f"{0:08x}"})})
            blank, present = (
                _CHECKSUM.format(number).encode() for number in (0, zlib.crc32(content))
            )
            temporary.write_bytes(content.replace(blank, present, 1))
        else:
            tensors = {_PREFIX + name: tensor for name, tensor in weights.items()}
            buffer = io.BytesIO()  # errors of a file would not name the reason
            torch.save({CONFIG_KEY: head, "state_dict": tensors}, buffer)
            temporary.write_bytes(buffer.getbuffer())


def average_weights(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of state dicts with the same names and shapes; integers are those of the last one."""
    last = states[-1]
    stacks = {
        n: torch.stack([state[n].double() for state in states])
        for n, tensor in last.items()
        if tensor.is_floating_point()
    }
    return last | {name: stack.mean(0).to(last[name].dtype) for name, stack in stacks.items()}


def resemblance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Median cosine between the matrices of two state dicts: about 0 for unrelated runs, near 1 for a continued run."""
    cosines = [
        nn.functional.cosine_similarity(a[name].double().flatten(), b[name].double().flatten(), 0)
        for name, tensor in a.items()
        if tensor.ndim >= 2 and tensor.is_floating_point()
    ]
    return float(torch.stack(cosines).median()) if cosines else 1.0


def recipe_name(path: Path) -> str:
    """The task of a checkpoint's model (CheckpointError: it is damaged or foreign)."""
    return str(_read(path)[CONFIG_KEY].get("task", TrainConfig.task))


def check_resume(path: Path, config: Any, scenes: DataSpec, root: str) -> int:
    """The number of completed steps in a checkpoint from which a run with this recipe may resume on these training scenes.

    The recipe may differ in `trainer`, `first_stage`, `init` and most of `data`, because files and machines change, and a run may
    be extended. Raises CheckpointError: it is damaged or foreign, its recipe differs in another field, or it has more epochs
    than the recipe. TrajformerError: the scenes in `root` differ from its training scenes (see `check_scenes`).
    """
    raw = _read(path)
    model, before = _build(path, raw, type(config))
    check_scenes(scenes, Predictor(model).trained_on, root)
    if not {"loops", "global_step"} <= raw.keys():
        raise CheckpointError(
            f"{path}: has no state of a training; train from its weights with --init"
        )
    done, trainer = (
        raw["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"],
        config.trainer,
    )
    if trainer.minutes is None and done > trainer.epochs:
        raise CheckpointError(
            f"{path}: has {done} epochs, more than trainer.epochs {trainer.epochs}"
        )
    used = float(raw.get(USED, 0.0)) / 60
    if trainer.minutes is not None and trainer.minutes < min(used, before.trainer.minutes or used):
        raise CheckpointError(
            f"{path}: has used {used:.3g} minutes, more than trainer.minutes {trainer.minutes:g}"
        )
    old, new = map(_fixed, (before, config))
    if changes := list_changes(old, new):
        raise CheckpointError(
            f"{path}: was trained with {'; '.join(changes)}; resume with the config.yaml in its folder"
        )
    return int(raw["global_step"])


def _fixed(recipe: Any) -> dict[str, Any]:
    """The part of a recipe that may not change when a run resumes."""
    plain = to_plain(recipe)
    data = {name: value for name, value in plain.get("data", {}).items() if name in _FIXED_DATA}
    return {name: value for name, value in plain.items() if name not in _MAY_CHANGE} | {
        "data": data
    }


def list_changes(old: Any, new: Any, name: str = "") -> list[str]:
    """One line for every value that differs between two configs as plain values."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = list(dict.fromkeys([*old, *new]))
        return [
            line
            for n in names
            for line in list_changes(old.get(n), new.get(n), f"{name}.{n}" if name else n)
        ]
    was, now = ("given" if isinstance(value, dict) else json.dumps(value) for value in (old, new))
    return [] if old == new else [f"{name} {was}, not {now}"]
