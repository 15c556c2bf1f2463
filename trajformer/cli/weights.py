"""`trajformer weights`: convert published weights, or a checkpoint of a run.

To add a layout of published weights, write a function `(StateDictReader, Options) -> Converted` and
list it in `LAYOUTS`. It returns a recipe or a model config, and a state dict.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trajformer.cli.files import check_outputs
from trajformer.cli.parsing import Parser, PositiveInt, add_overwrite, new_parser
from trajformer.errors import CheckpointError, ConfigError, TrajformerError
from trajformer.scenes.files import read_file
from trajformer.scenes.spec import DataSpec

if TYPE_CHECKING:
    from torch import Tensor

    from trajformer.core.weights import Converted, Options, StateDictReader

    Reader = Callable[[StateDictReader, Options], Converted]

MAX_LABEL_BYTES = 10_000_000
RUN_LAYOUT = "trajformer"  # of checkpoints of a run


class Layout(NamedTuple):
    """A published format.

    `summary` names the source and assumptions that the shapes do not show. `find` imports and
    returns the function that reads the format.
    """

    summary: str
    find: Callable[[], Reader]


def _heads() -> Any:
    """Readers of the reference heads. Their import takes seconds."""
    from trajformer.heads import weights

    return weights


def _agentformer() -> Any:
    """Readers of AgentFormer."""
    from trajformer.models.agentformer import weights

    return weights


LAYOUTS = {
    "attention_is_all_you_need": Layout(
        "Transformer of attention-is-all-you-need-pytorch (8 heads)",
        lambda: _heads().attention_is_all_you_need,
    ),
    "timm_vit": Layout(
        "VisionTransformer of timm (64 channels per head)", lambda: _heads().timm_vit
    ),
    "hf_vit": Layout(
        "ViTForImageClassification of Hugging Face (64 channels per head)",
        lambda: _heads().hf_vit,
    ),
    "facebook_detr": Layout(
        "DETR of its authors, with ResNet-50 or -101 (8 heads)", lambda: _heads().facebook_detr
    ),
    "facebook_detr_dc5": Layout(
        "the same with a dilated last stage", lambda: _heads().facebook_detr_dc5
    ),
    "hf_detr": Layout("DetrForObjectDetection of Hugging Face (8 heads)", lambda: _heads().hf_detr),
    "agentformer": Layout(
        "AgentFormer of its authors, first stage: hotel, univ, zara2 (8 heads)",
        lambda: _agentformer().agentformer,
    ),
    "agentformer_eth": Layout(
        "the same for eth, in units of 2 m", lambda: _agentformer().agentformer_eth
    ),
    "agentformer_zara1": Layout(
        "the same for zara1, with positions relative to the last ones",
        lambda: _agentformer().agentformer_zara1,
    ),
}


def parser() -> Parser:
    """convert LAYOUT FILE OUT."""
    made = new_parser(
        "Convert published weights, or a checkpoint of a run, into a checkpoint without the state "
        "of a run. Every tensor of FILE must be used and every parameter of the model must be "
        "given; otherwise nothing is written."
    )
    summaries = {RUN_LAYOUT: "a checkpoint of a run"}
    summaries |= {name: layout.summary for name, layout in LAYOUTS.items()}
    made.add_argument("action", choices=("convert",), help="the action")
    made.add_argument(
        "layout",
        metavar="layout",
        choices=tuple(summaries),
        help="; ".join(f"{name}: {text}" for name, text in summaries.items()),
    )
    made.add_argument("file", type=Path, help=".safetensors, or .pt, .pth, .bin with plain tensors")
    made.add_argument(
        "out", type=Path, help="the checkpoint to write, as safetensors if it ends in .safetensors"
    )
    made.add_argument(
        "--heads",
        type=PositiveInt,
        help="number of attention heads (default: as listed for the layout)",
    )
    made.add_argument(
        "--labels",
        type=Path,
        help="text file with one class name per line, in the order of the outputs",
    )
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Write the checkpoint and print its contents."""
    from trajformer.core.weights import Options
    from trajformer.recipes.checkpoint import write_checkpoint

    is_safetensors = args.out.suffix == ".safetensors"
    check_outputs(args, out="safetensors" if is_safetensors else "ckpt")
    if args.layout == RUN_LAYOUT and (args.heads is not None or args.labels is not None):
        reason = f"not allowed for {RUN_LAYOUT}: the checkpoint has both"
        raise TrajformerError(f"--heads and --labels are {reason}")
    labels = () if args.labels is None else _read_labels(args.labels)
    recipe, weights, trained_on = convert(args.layout, args.file, Options(args.heads, labels))
    write_checkpoint(args.out, recipe, weights, trained_on)
    count = sum(tensor.numel() for tensor in weights.values())
    print(f"{args.out}: a model for {recipe.task}, {len(weights)} tensors with {count:,} numbers")


def convert(layout: str, path: Path, options: Options) -> tuple[Any, dict[str, Tensor], DataSpec]:
    """Recipe, state dict and training scenes of a file of a layout.

    Raises CheckpointError: the file is unreadable, or of another layout.
    """
    if layout == RUN_LAYOUT:
        return _convert_run(path)
    from trajformer.core.weights import read_state_dict
    from trajformer.models.agentformer.model import AgentFormerConfig
    from trajformer.recipes.recipe import TrainConfig

    source = read_state_dict(path)
    try:
        recipe, weights = LAYOUTS[layout].find()(source, options)
    except ConfigError as error:
        raise CheckpointError(f"{path}: sizes do not fit together: {error}") from error
    source.check_all_used()
    if isinstance(recipe, AgentFormerConfig):
        recipe = TrainConfig(recipe)
    return recipe, weights, DataSpec()


def _convert_run(path: Path) -> tuple[Any, dict[str, Tensor], DataSpec]:
    """Recipe, state dict and training scenes of a checkpoint of a run."""
    from trajformer.cli.tasks import TASKS
    from trajformer.models.forecaster import Predictor
    from trajformer.recipes.checkpoint import load_checkpoint, recipe_name
    from trajformer.recipes.recipe import TrainConfig

    task = recipe_name(path)
    if task not in TASKS:
        raise CheckpointError(f"{path}: is for the unknown task '{task}'")
    model, recipe = load_checkpoint(path, TASKS[task].recipe)
    if isinstance(recipe, TrainConfig):  # paths of one machine have no meaning on another
        data = replace(recipe.data, train="", val="")
        recipe = replace(recipe, data=data, first_stage="", init="")
    return recipe, model.state_dict(), Predictor(model).trained_on


def _read_labels(path: Path) -> tuple[str, ...]:
    """The class names in a text file.

    Raises TrajformerError: the file is unreadable, has an empty line or a repeated name.
    """
    try:
        text = read_file(path, MAX_LABEL_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TrajformerError(f"{path}: labels cannot be read: {reason}") from error
    names = tuple(line.strip() for line in text.splitlines())
    if "" in names or len(set(names)) < len(names):
        reason = "an empty line or a repeated name; expected one class per line"
        raise TrajformerError(f"{path}: {reason}")
    return names
