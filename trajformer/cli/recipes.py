"""`trajformer recipes`: the recipes that are part of trajformer."""

from argparse import Namespace

from trajformer.cli.parsing import Parser, new_parser
from trajformer.recipes.names import recipe_file, recipe_header, recipe_names


def parser() -> Parser:
    """[NAME ...]."""
    made = new_parser(
        "List the recipes: data set, number of parameters, expected result and training time. "
        "A name is a value for the option --config of `trajformer train`. With NAMES, print these "
        "recipes."
    )
    made.add_argument("names", nargs="*", help="print the YAML text of these recipes")
    return made


def run(args: Namespace) -> None:
    """Print the given recipes, or the list of all recipes."""
    for name in args.names:
        print(recipe_file(name).read_text(encoding="utf-8"), end="")
    if args.names:
        return
    for name in recipe_names():
        header = recipe_header(recipe_file(name))
        print(name)
        print(f"  data      {header['Data']}")
        print(f"  size      {header['Parameters']} parameters")
        print(f"  expected  {header['Expected']}")
        print(f"  time      {header['Time']}")
