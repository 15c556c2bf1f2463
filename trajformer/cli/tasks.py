"""What can be trained: one entry a task. To add one, write its file and list it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trajformer.heads.detr.task import DetectionData, DetectionModule, DetectionRecipe
from trajformer.heads.translation.task import TextData, TranslationModule, TranslationRecipe
from trajformer.heads.vit.task import ClassificationModule, ClassificationRecipe, ImageData
from trajformer.recipes.recipe import TrainConfig
from trajformer.training.base import TaskData, TaskModule
from trajformer.training.forecasting import ForecastingModule, SceneData


@dataclass(frozen=True)
class Task:
    """How a kind of recipe is trained.

    Attributes:
        recipe: its dataclass; `recipe.task` is the task's name.
        module: makes the Lightning module of a recipe.
        data: makes the data module of a recipe.
        monitor: the validation figure that the best checkpoint has.
        mode: whether it should be small or large.
        shown: figures on the line of a validation.
    """

    recipe: type[Any]
    module: Callable[[Any], TaskModule]
    data: Callable[[Any], TaskData]
    monitor: str
    mode: str
    shown: tuple[str, ...]


_ALL = (
    Task(
        TrainConfig,
        ForecastingModule,
        lambda recipe: SceneData(recipe.data, recipe.seed),
        monitor="val/minFDE",  # of all modes: of six where a model has six
        mode="min",
        shown=("val/minADE_6", "val/minFDE_6", "val/MR_6", "val/minFDE_1", "val/minFDE"),
    ),
    Task(
        TranslationRecipe,
        TranslationModule,
        lambda recipe: TextData(recipe.data, recipe.seed),
        monitor="val/BLEU",
        mode="max",
        shown=("val/cross_entropy", "val/BLEU"),
    ),
    Task(
        ClassificationRecipe,
        ClassificationModule,
        ImageData,
        monitor="val/cross_entropy",  # small splits have many checkpoints of the highest accuracy
        mode="min",
        shown=("val/accuracy", "val/cross_entropy"),
    ),
    Task(
        DetectionRecipe,
        DetectionModule,
        DetectionData,
        monitor="val/AP50",
        mode="max",
        shown=("val/loss", "val/AP", "val/AP50"),
    ),
)
TASKS = {task.recipe.task: task for task in _ALL}
