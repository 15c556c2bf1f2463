"""Options of `trajformer train`: the fields of a recipe, parsed by jsonargparse.

Values on the command line and in recipes are YAML by the rules of `parse_yaml`.
"""

import re
from argparse import ArgumentError
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import (
    ActionConfigFile,
    ArgumentParser,
    DefaultHelpFormatter,
    Namespace,
    get_loader,
    set_loader,
)

from trajformer.cli.data_sets import joined
from trajformer.cli.parsing import EMPTY_PATH, add_variant, refuse
from trajformer.cli.tasks import TASKS
from trajformer.errors import TrajformerError
from trajformer.recipes.checkpoint import recipe_of
from trajformer.recipes.checkpoint_files import CONFIG_KEY, read_checkpoint
from trajformer.recipes.names import recipe_file
from trajformer.recipes.plain import schema, to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.recipes.yaml_text import parse_yaml, read_yaml

CONFIG = "config.yaml"  # the recipe in the folder of a run
OF_INIT = "\0init"  # a value of --config that no user can type, see `RecipeParser`
ERROR_REWRITES = (  # regular expressions and replacements, in this order
    # jsonargparse lists all types that it tried for a field; the reason is enough.
    (
        r"Does not validate against any.*?class_path '[^']*': (.*?) - Expected"
        r" a <class 'NoneType'>.*",
        r"\1",
    ),
    (
        r"Does not validate against any.*?Expected a typing.Literal\[([^\]]*)\]"
        r".* Given value: (.*)",
        r"\2, expected one of \1",
    ),
    (r"<class '([^']*)'>", r"\1"),
    (r'Parser key "([^"]*)"', r"\1"),
)

_load_yaml = get_loader("yaml")


def _load_safely(text: str) -> Any:
    """Load a YAML text that follows the rules of `parse_yaml`."""
    parse_yaml(text, "value")
    return _load_yaml(text)


set_loader("yaml", _load_safely, (yaml.YAMLError, TrajformerError))


class RecipeFormatter(DefaultHelpFormatter):
    """Help texts without Python classes, and without defaults that say nothing."""

    def _expand_help(self, action: Any) -> str:
        text = super()._expand_help(action).replace("type: <class 'Path'>", "type: path")
        text = re.sub(r", default: null\)", ")", text)
        return re.sub(r" ?\(default: (null|False|\[\])\)", "", text)


class OtherTaskError(TrajformerError):
    """A recipe is for another task than the parser."""

    def __init__(self, recipe: str, task: str, expected: str) -> None:
        super().__init__(f"{recipe}: a recipe for {task}, expected one for {expected}")
        self.task = task


class RecipeAction(ActionConfigFile):
    """The option --config: a recipe, by name or file, whose fields become values of the parser.

    A file that was read already is not read again.
    """

    def __call__(self, parser: Any, cfg: Any, value: Any, option_string: Any = None) -> None:
        """Merge a recipe into the values `cfg` that were read before.

        Raises TrajformerError: the value is neither a file nor the name of a recipe, the file
        cannot be read, or the recipe is for another task than the parser (OtherTaskError).
        """
        if value == OF_INIT:
            super().__call__(parser, cfg, parser.init_text, option_string)
            return
        file = recipe_file(value)
        files_before = [Path(str(path)).resolve() for path in cfg.get(self.dest) or ()]
        if file.resolve() in files_before:
            return
        parser.recipes.append(value)
        recipe = read_yaml(file)
        if isinstance(recipe, dict) and recipe.get("task", parser.task) != parser.task:
            raise OtherTaskError(value, recipe["task"], parser.task)
        super().__call__(parser, cfg, str(file), option_string)


class RecipeParser(ArgumentParser):
    """A parser whose options override the recipes of --config, before and after this option.

    With --resume and without --config, the recipe is that of the run. With --init, fields of the
    model and of its input that are not given are those of the checkpoint. Unless the task is given
    on the command line, it is that of the recipe.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task = ""
        self.task_is_given = False  # on the command line
        self.recipes: list[str] = []  # values of --config so far
        self.init_text = ""  # YAML of the fields that come from the checkpoint of --init

    def parse_words(self, words: list[str]) -> Namespace:
        """The values of a command line.

        Raises TrajformerError: there is no run to resume; see also `RecipeAction`.
        """
        words = joined(words)
        try:
            return self._parse_with_recipes(words)
        except OtherTaskError as error:
            if self.task_is_given or error.task not in TASKS:
                raise
            other = new_recipe_parser(error.task)
        other.prog = self.prog
        return other._parse_with_recipes(words)

    def _parse_with_recipes(self, words: list[str]) -> Namespace:
        self.recipes = []
        of_init = self._of_init(_option("--init", words), words)
        args = self._parse([*of_init, *words])
        recipes = [recipe for recipe in args.config or () if recipe]
        if args.resume and not recipes:
            recipes = [_recipe_of_run(args)]
        # A later value overrides an earlier one, so the recipes come first in a second pass.
        options = [word for recipe in recipes for word in ("--config", str(recipe))]
        of_init = self._of_init(args.get("init"), words)
        self.recipes = []
        args = self._parse([*of_init, *options, *words])
        if of_init:
            _check_one_model(args)
        return args

    def _of_init(self, init: str | None, words: list[str]) -> list[str]:
        """Words that set the fields of the checkpoint --init, if there is one."""
        if not init or "--resume" in words or self.task != TrainConfig.task:
            return []
        self.init_text = _fields_of_init(init)
        return ["--config", OF_INIT] if self.init_text else []

    def _parse(self, words: list[str]) -> Namespace:
        """The values of a command line; exits with status 2 if it is malformed."""
        try:
            args = self.parse_args(words)
        except UnicodeDecodeError as error:
            self.error(f"not a text file: {error}")
        if "" in words and args.out == Path():
            self.error(EMPTY_PATH)
        return args

    def error(self, message: str, *rest: Any) -> NoReturn:
        """Print the field, the reason and the recipes in one line, and exit with status 2.

        The parser of a part of a recipe raises an ArgumentError for the main parser instead.
        """
        if not self.exit_on_error:
            raise ArgumentError(None, message)
        line = " ".join(str(message).split())
        for pattern, replacement in ERROR_REWRITES:
            line = re.sub(pattern, replacement, line)
        recipes = f"recipe {', '.join(self.recipes)}; " if self.recipes else ""
        refuse(self.prog, line, recipes)


def _option(name: str, words: list[str]) -> str | None:
    """The last value of an option on a command line, which is not parsed yet."""
    value = None
    for index, word in enumerate(words):
        if word == name and index + 1 < len(words):
            value = words[index + 1]
        elif word.startswith(f"{name}="):
            value = word.removeprefix(f"{name}=")
    return value


def _fields_of_init(init: str) -> str:
    """The model, its batch settings and the unit of the checkpoint --init, as YAML.

    It is empty for a checkpoint of another task, because the task of the recipe is not known yet.
    Raises TrajformerError: the checkpoint cannot be read.
    """
    path = Path(init)
    try:
        content = read_checkpoint(path)
        if content[CONFIG_KEY].get("task", TrainConfig.task) != TrainConfig.task:
            return ""
        plain = to_plain(recipe_of(path, content, TrainConfig))
    except TrajformerError as error:
        raise TrajformerError(f"init: {error}") from error
    data = {"batch": plain["data"]["batch"], "unit": plain["data"]["unit"]}
    return yaml.safe_dump({"model": plain["model"], "data": data})


def _check_one_model(args: Namespace) -> None:
    """Raise TrajformerError if the recipe is for another model than the checkpoint --init."""
    given = [name for name, value in vars(args.model).items() if value is not None]
    if len(given) > 1:
        names = " and ".join(given)
        raise TrajformerError(f"init: {args.init}: the checkpoint and the recipe have {names}")


def _recipe_of_run(args: Namespace) -> Path:
    path: Path = args.out / CONFIG
    if not path.is_file():
        reason = "no run to resume there; correct --out, or start a run with --config"
        raise TrajformerError(f"{args.out}: {reason}")
    return path


def new_recipe_parser(task: str) -> RecipeParser:
    """--config RECIPE --out RUN, and all fields of the recipe of a task."""
    others = ", ".join(name for name in TASKS if name != task)
    made = RecipeParser(
        formatter_class=RecipeFormatter,
        description="Train a recipe. All fields of the recipe are options, too: "
        "--data.train STORE --optim.learning_rate 5e-4. --data.train A --data.train B:0.5 trains "
        "on several data sets, on half of the scenes of B in each epoch. "
        "--model.mmtransformer.help lists the fields of a model. "
        f"`trajformer train TASK --help` lists the fields of another task ({others}). "
        "OUT receives best.ckpt, last.ckpt, config.yaml, csv/metrics.csv and, "
        "if TensorBoard is installed, tensorboard/.",
    )
    made.task = task
    add_variant(made, "task", task)
    made.add_argument(
        "--config",
        action=RecipeAction,
        help="name (`trajformer recipes`) or YAML file of a recipe; all other options override it",
    )
    made.add_argument("--out", type=Path, required=True, help="folder of the run")
    made.add_argument(
        "--resume",
        action="store_true",
        help="resume from OUT/last.ckpt, by default with the recipe OUT/config.yaml",
    )
    made.add_class_arguments(schema(TASKS[task].recipe))
    return made
