"""`trajformer pretrained`: the weights that are part of trajformer."""

from argparse import Namespace

from trajformer.cli.parsing import Parser, new_parser
from trajformer.recipes.names import (
    PRETRAINED,
    checkpoint_file,
    pretrained_card,
    pretrained_names,
    pretrained_scenes,
)
from trajformer.scenes.spec import DataSpec


def parser() -> Parser:
    """No arguments."""
    return new_parser(
        "List the weights that are part of trajformer: data set, clock, horizon and unit of their "
        "scenes, licence note, metrics and the command that made them. pretrained:NAME is "
        "accepted wherever a checkpoint is."
    )


def run(_: Namespace) -> None:
    """Print the names and cards of all weights; the weights of a folder share one card."""
    names_of: dict[str, list[str]] = {}  # by the text of the card
    for name in pretrained_names():
        size = checkpoint_file(f"{PRETRAINED}{name}").stat().st_size / 1e6
        card = {"scenes": describe(pretrained_scenes(name))} | pretrained_card(name)
        lines = [f"  {field:<9} {text}" for field, text in card.items()]
        names_of.setdefault("\n".join(lines), []).append(f"{PRETRAINED}{name} ({size:.1f} MB)")
    for text, names in names_of.items():
        print("\n".join([*names, text]))


def describe(scenes: DataSpec) -> str:
    """Clock, history, horizon, unit and map of the training scenes of weights."""
    period_s = scenes.period_s or 0.0
    lengths = []
    for name, steps in (("observed", scenes.num_history), ("predicted", scenes.num_future)):
        steps = steps or 0
        lengths.append(f"{steps} steps {name} ({steps * period_s:g} s)")
    lanes = "with map" if scenes.has_map else "without map"
    return f"{', '.join(lengths)}, {period_s:g} s a step, positions in {scenes.unit}, {lanes}"
