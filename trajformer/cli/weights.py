"""`trajformer weights convert`: published weights, or a checkpoint of a run, become a checkpoint without the state of a run.

To add a layout, write a function `(StateDictReader, Options) -> Converted` and list it in `layouts`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from trajformer.cli.files import make_room
from trajformer.cli.parsing import Parser, new_parser
from trajformer.errors import CheckpointError, ConfigError, TrajformerError

if TYPE_CHECKING:
    from trajformer.core.weights import Converted, Options, StateDictReader

OWN = "trajformer"  # the layout of this project's checkpoints


def layouts() -> dict[str, tuple[str, Callable[[StateDictReader, Options], Converted]]]:
    """Published formats by name: their source with assumptions that the shapes do not show, and a function that reads them.

    The function returns a recipe or a model config, and a state dict. The models are imported here, because every command
    imports this file.
    """
    from trajformer.heads.weights import attention_is_all_you_need, facebook_detr, facebook_detr_dc5, hf_detr, hf_vit, timm_vit
    from trajformer.models.agentformer.weights import agentformer, agentformer_eth, agentformer_zara1

    return {
        "attention_is_all_you_need": ("Transformer of attention-is-all-you-need-pytorch (8 heads)", attention_is_all_you_need),
        "timm_vit": ("VisionTransformer of timm (64 channels per head)", timm_vit),
        "hf_vit": ("ViTForImageClassification of Hugging Face (64 channels per head)", hf_vit),
        "facebook_detr": ("DETR of its authors, with ResNet-50 or -101 (8 heads)", facebook_detr),
        "facebook_detr_dc5": ("the same with a dilated last stage", facebook_detr_dc5),
        "hf_detr": ("DetrForObjectDetection of Hugging Face (8 heads)", hf_detr),
        "agentformer": ("AgentFormer of its authors, first stage: hotel, univ, zara2 (8 heads)", agentformer),
        "agentformer_eth": ("the same for eth, in units of 2 m", agentformer_eth),
        "agentformer_zara1": ("the same for zara1, with positions relative to the last ones", agentformer_zara1),
    }


def weights_parser() -> Parser:
    """convert LAYOUT FILE OUT."""
    parser = new_parser(
        "Convert published weights, or a checkpoint of a run, into a checkpoint without the state of a run. Every tensor of "
        "FILE must be used and every parameter of the model must be given; otherwise nothing is written."
    )
    parser.add_argument("action", choices=("convert",), help="the action")
    summaries = {OWN: "a checkpoint of a run"} | {name: summary for name, (summary, _) in layouts().items()}
    parser.add_argument("layout", choices=tuple(summaries), help="; ".join(f"{n}: {text}" for n, text in summaries.items()))
    parser.add_argument("file", type=Path, help=".safetensors, or .pt, .pth, .bin with plain tensors")
    parser.add_argument("out", type=Path, help="the checkpoint to write, as safetensors if it ends in .safetensors")
    parser.add_argument("--heads", type=PositiveInt, help="number of attention heads (default: as listed for the layout)")
    parser.add_argument("--labels", type=Path, help="text file with one class name per line, in the order of the outputs")
    return parser


def run_weights(args: Namespace) -> None:
    """`trajformer weights`: write the checkpoint and print its contents."""
    from trajformer.core.weights import Options
    from trajformer.recipes.checkpoint import write_checkpoint

    labels = _read_labels(args.labels) if args.labels is not None else ()
    recipe, weights = convert(args.layout, args.file, Options(args.heads, labels))
    make_room(args.out)
    write_checkpoint(args.out, recipe, weights)
    numbers = sum(tensor.numel() for tensor in weights.values())
    print(f"{args.out}: a model for {recipe.task}, {len(weights)} tensors, {numbers:,} parameters")


def convert(layout: str, path: Path, options: Options) -> Converted:
    """The recipe and the state dict for a file of a layout.

    Raises:
        CheckpointError: the file cannot be read, or its tensors are not the ones of the layout.
    """
    from trajformer.core.weights import read_state_dict
    from trajformer.models.agentformer.model import AgentFormerConfig
    from trajformer.recipes.recipe import TrainConfig

    if layout == OWN:
        from trajformer.cli.tasks import TASKS
        from trajformer.recipes.checkpoint import load_checkpoint, recipe_name

        task = recipe_name(path)
        if task not in TASKS:
            raise CheckpointError(f"{path}: is for the unknown task '{task}'")
        model, recipe = load_checkpoint(path, TASKS[task].recipe)
        return recipe, model.state_dict()
    source = read_state_dict(path)
    try:
        recipe, weights = layouts()[layout][1](source, options)
    except ConfigError as error:
        raise CheckpointError(f"{path}: sizes do not fit together: {error}") from error
    source.check_all_used()
    if isinstance(recipe, AgentFormerConfig):
        recipe = TrainConfig(recipe)
    return recipe, weights


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise TrajformerError(f"{path}: labels cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if "" in names or len(set(names)) < len(names):
        raise TrajformerError(f"{path}: an empty line or a repeated name; expected one class per line")
    return names
