"""`trajformer train`: train the recipe of a task."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from trajformer.cli.data_sets import plain_sources
from trajformer.cli.files import refuse_inputs
from trajformer.cli.forecasters import warn_if_interrupted
from trajformer.cli.recipe_parsing import CONFIG, RecipeParser, new_recipe_parser
from trajformer.cli.tasks import TASKS
from trajformer.recipes.plain import from_plain
from trajformer.recipes.recipe import TrainConfig

VARIANTS = tuple(TASKS)


def parser(task: str = "") -> RecipeParser:
    """[TASK] --config RECIPE --out RUN, and all fields of the recipe of the task."""
    made = new_recipe_parser(task or TrainConfig.task)
    made.task_is_given = bool(task)
    return made


def run(args: Namespace) -> None:
    """Train, and print the path of the checkpoint; only the first of several processes prints."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    from trajformer.training.run import train

    task = TASKS[args.task]
    plain = args.as_dict()
    for part in ("train", "val"):
        if part in plain["data"]:
            plain["data"][part] = plain_sources(plain["data"][part])
    recipe = from_plain(task.recipe, {item.name: plain[item.name] for item in fields(task.recipe)})
    stores = _stores(recipe)
    refuse_inputs(args.out, stores)
    if not args.resume:
        recipes = [("config", Path(str(path))) for path in args.config or () if path]
        refuse_inputs(args.out / CONFIG, recipes)
    if args.task == TrainConfig.task:
        for store in {store for _, store in stores}:
            warn_if_interrupted(store)
    rank_zero_only(print)(train(recipe, task, args.out, resume=args.resume))


def _stores(recipe: Any) -> list[tuple[str, Path]]:
    """The stores or files that a recipe names, with their fields."""
    named = []
    for part in ("train", "val"):
        given = getattr(recipe.data, part, "")
        paths = [given] if isinstance(given, str) else [source.store for source in given]
        named += [(f"data.{part}", Path(path)) for path in paths if path]
    return named
