"""`trajformer pretrained`: the weights that are part of trajformer."""

from jsonargparse import Namespace

from trajformer.cli.parsing import Parser, new_parser
from trajformer.recipes.names import PRETRAINED, checkpoint_file, pretrained_card, pretrained_names


def parser() -> Parser:
    """No arguments."""
    return new_parser(
        "List the weights that are part of trajformer: data set, licence note, metrics and the "
        "command that made them. pretrained:NAME is accepted wherever a checkpoint is."
    )


def run(_: Namespace) -> None:
    """Print the names and cards of all weights; the weights of a folder share one card."""
    names_of: dict[str, list[str]] = {}  # by the text of the card
    for name in pretrained_names():
        size = checkpoint_file(f"{PRETRAINED}{name}").stat().st_size / 1e6
        lines = [f"  {field:<9} {text}" for field, text in pretrained_card(name).items()]
        names_of.setdefault("\n".join(lines), []).append(f"{PRETRAINED}{name} ({size:.1f} MB)")
    for card, names in names_of.items():
        print("\n".join([*names, card]))
