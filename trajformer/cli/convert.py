"""`trajformer weights convert`: a file of published weights in, a checkpoint of this software out.

To add a layout, write a function `(Source, Options) -> Converted` and list it in `LAYOUTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trajformer.core.weights import Options, Source, read_source
from trajformer.errors import CheckpointError, TrajformerError
from trajformer.heads.detr.weights import facebook_detr, facebook_detr_dc5, hf_detr
from trajformer.heads.translation.weights import attention_is_all_you_need
from trajformer.heads.vit.weights import hf_vit, timm_vit
from trajformer.models.agentformer.weights import agentformer, agentformer_eth, agentformer_zara1
from trajformer.recipes.checkpoint import load_checkpoint, recipe_name, write_checkpoint

__all__ = ["LAYOUTS", "OWN", "Converted", "convert", "write_checkpoint"]
OWN = "trajformer"  # the layout of this software's own checkpoints
Converted = tuple[Any, dict[str, Tensor]]  # a recipe, and its model's weights by name


@dataclass(frozen=True)
class Layout:
    """A way to write the weights of a system down.

    Attributes:
        summary: for the command's help: whose layout, and what is assumed that no shape tells.
        read: makes a recipe and its model's weights of a file's tensors, taking every one of them.
    """

    summary: str
    read: Callable[[Source, Options], Converted]


LAYOUTS = {
    "attention_is_all_you_need": Layout("Transformer of attention-is-all-you-need-pytorch (8 heads)", attention_is_all_you_need),
    "timm_vit": Layout("VisionTransformer of timm (64 channels a head)", timm_vit),
    "facebook_detr": Layout("DETR of its authors, with ResNet-50 or -101 (8 heads)", facebook_detr),
    "facebook_detr_dc5": Layout("the same with a dilated last stage", facebook_detr_dc5),
    "hf_detr": Layout("DetrForObjectDetection of Hugging Face (8 heads)", hf_detr),
    "agentformer": Layout("AgentFormer of its authors, first stage: hotel, univ, zara2 (8 heads)", agentformer),
    "agentformer_eth": Layout("the same for eth, where 2 m are 1", agentformer_eth),
    "agentformer_zara1": Layout("the same for zara1, where positions are relative to the last ones", agentformer_zara1),
    "hf_vit": Layout("ViTForImageClassification of Hugging Face (64 channels a head)", hf_vit),
}


def convert(layout: str, path: Path, options: Options) -> Converted:
    """The recipe and the model's weights that a file of a layout amounts to.

    Raises:
        CheckpointError: the file cannot be read, has a tensor too many, one too few, or one of another shape.
    """
    if layout == OWN:
        return _own(path)
    source = read_source(path)
    recipe, weights = LAYOUTS[layout].read(source, options)
    source.check_empty()
    try:
        with torch.device("meta"):
            wanted = recipe.build_model().state_dict()
    except (TrajformerError, ValueError) as error:
        raise CheckpointError(f"{path}: sizes do not go together: {error}") from error
    for name, tensor in wanted.items():
        if name not in weights or weights[name].shape != tensor.shape:
            found = list(weights[name].shape) if name in weights else "nothing"
            raise CheckpointError(f"{path}: '{name}' of the model is {list(tensor.shape)}, found {found}")
    if unknown := set(weights) - set(wanted):
        raise CheckpointError(f"{path}: the model has no '{min(unknown)}'")
    return recipe, weights


def _own(path: Path) -> Converted:
    """A run's checkpoint without the state of its run."""
    from trajformer.cli.tasks import TASKS

    task = recipe_name(path)
    if task not in TASKS:
        raise CheckpointError(f"{path}: is of a model for '{task}', which this software does not know")
    model, recipe = load_checkpoint(path, TASKS[task].recipe)
    return recipe, model.state_dict()
