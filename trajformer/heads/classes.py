"""Recipes of tasks with classes: names of the outputs, and weights to start from."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

from torch import Tensor

from trajformer.errors import CheckpointError
from trajformer.recipes.checkpoint import list_changes, load_checkpoint
from trajformer.recipes.plain import to_plain


class ClassRecipe:
    """Base of the recipes of models with classes."""

    model: Any  # config with the number of `classes`
    labels: tuple[str, ...]
    start: str

    def names(self) -> tuple[str, ...]:
        """A name for every class of the model; "class 0" and so on if `labels` is empty."""
        return self.labels or tuple(f"class {index}" for index in range(self.model.classes))

    def load_start(self, may_differ: Collection[str]) -> tuple[dict[str, Tensor], Self]:
        """The state dict and the recipe of the checkpoint `start`.

        Args:
            may_differ: fields of the model config that may differ from this recipe, in addition to classes and dropout.

        Raises:
            CheckpointError: the checkpoint cannot be read, or its model differs in another field.
        """
        model, recipe = load_checkpoint(self.start, type(self))
        allowed = {"classes", "dropout", "attention_dropout", *may_differ}
        changes = list_changes(to_plain(recipe.model), to_plain(self.model), "model")
        changes = [line for line in changes if line.split()[0].rpartition(".")[2] not in allowed]
        if changes:
            raise CheckpointError(f"{self.start}: has {'; '.join(changes)}")
        return model.state_dict(), recipe
