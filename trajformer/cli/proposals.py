"""Included weights that fit the scenes of a store, for commands without a model."""

import shlex
from typing import NamedTuple

from trajformer.errors import TrajformerError
from trajformer.recipes.names import PRETRAINED, card_names, pretrained_names, pretrained_scenes
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import DataSpec, check_scenes, differences
from trajformer.scenes.store import SceneStore


class _Weights(NamedTuple):
    """Included weights, and the number of reasons against them."""

    name: str
    trained_on: DataSpec
    reasons: int


def proposal(scenes: SceneStore, command: str) -> str:
    """One line with the command that uses fitting weights, or the reason why none fits.

    `command` is a command with its other options, such as "predict --out FILE". The first reason
    for a choice is that the model was not trained on these scenes, then the map, then the data set.
    """
    if not len(scenes):
        return f"split '{scenes.split}' of {scenes.root} has no scenes"
    first = scenes[0]
    spec = DataSpec.of(first)
    candidates = [_judged(name, first, spec) for name in _by_preference()]
    fitting = [one for one in candidates if not differences(spec, one.trained_on)]
    if not fitting:
        return _why_none(scenes, spec, candidates)
    fitting.sort(key=lambda one: one.reasons)  # stable: equal ones stay in order of preference
    best = fitting[0]
    words = ["--checkpoint", f"{PRETRAINED}{best.name}"]
    words += ["--store", str(scenes.root), "--split", scenes.split]
    line = f"included weights fit: trajformer {command} {shlex.join(words)}"
    notes = []
    if best.trained_on.contains(first):
        notes.append("trained on this split")
    if spec.has_map and not best.trained_on.has_map:
        notes.append("trained without maps")
    if best.trained_on.has_map and not spec.has_map:
        notes.append("trained with maps, which the first scene lacks")
    if len(fitting) > 1:
        notes.append(f"also {', '.join(one.name for one in fitting[1:])}")
    if notes:
        line += f" ({'; '.join(notes)})"
    return line


def _by_preference() -> list[str]:
    """Names of all weights in the order of their cards."""
    order = card_names()
    names = pretrained_names()
    return sorted(names, key=lambda name: order.index(_card(name, order)))


def _card(name: str, cards: list[str]) -> str:
    return name if name in cards else name.partition("/")[0]


def _judged(name: str, scene: Scene, spec: DataSpec) -> _Weights:
    trained_on = pretrained_scenes(name)
    reasons = 0
    if trained_on.contains(scene):
        reasons += 4
    if trained_on.has_map != spec.has_map:
        reasons += 2
    if trained_on.source != spec.source:
        reasons += 1
    return _Weights(name, trained_on, reasons)


def _why_none(scenes: SceneStore, spec: DataSpec, candidates: list[_Weights]) -> str:
    """The difference to the nearest weights, preferably some for which the store can be converted.

    Weights for the same unit and map are nearer.
    """
    nearest = ""
    smallest: tuple[bool, bool, int] | None = None
    for one in candidates:
        different = differences(spec, one.trained_on)
        try:
            check_scenes(spec, one.trained_on, scenes.root, f"{PRETRAINED}{one.name} needs")
        except TrajformerError as error:
            reason = str(error)
        distance = ("convert it" not in reason, "unit" in different, len(different) + one.reasons)
        if smallest is None or distance < smallest:
            smallest = distance
            nearest = reason
    return f"none of the included weights fits: {nearest}"
