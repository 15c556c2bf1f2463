"""The scenes of a report: worst, median and best, and the largest gains and losses."""

from dataclasses import replace

import numpy as np
import pandas as pd

from trajformer.evaluation.examples import examples, scene_errors
from trajformer.evaluation.scoring import Scoring


def scoring(errors: dict[str, list[float]]) -> Scoring:
    """A record with the minFDE6 of the agents of each scene."""
    rows = [(name, error) for name, values in errors.items() for error in values]
    table = pd.DataFrame(rows, columns=["scenario_id", "minFDE6"])
    return Scoring({}, table, pd.DataFrame(), metric_columns=("minFDE6",))


FIRST = scoring({f"s{number}": [number, number + 2.0] for number in range(9)})


def ids(scorings: list[Scoring], count: int) -> dict[str, tuple[str, ...]]:
    return {group.name: group.scene_ids for group in examples(scorings, count)}


def test_scenes_have_the_mean_error_of_their_agents() -> None:
    errors = scene_errors([FIRST, scoring({"s1": [7.0]})])
    assert errors.loc["s3", 0] == 4.0
    assert errors.loc["s1", 1] == 7.0
    assert np.isnan(errors.loc["s3", 1])


def test_worst_median_and_best_scenes() -> None:
    assert ids([FIRST], 1) == {"worst": ("s8",), "median": ("s4",), "best": ("s0",)}
    assert ids([FIRST], 2)["worst"] == ("s8", "s7")
    assert ids([FIRST], 2)["best"] == ("s0", "s1")
    assert ids([FIRST], 2)["median"] == ("s4", "s3")


def test_few_scenes_are_in_one_group_only() -> None:
    for number in range(1, 9):
        few = replace(FIRST, per_agent=FIRST.per_agent.head(2 * number))
        chosen = [name for group in ids([few], 4).values() for name in group]
        assert len(set(chosen)) == len(chosen) >= min(number, 3)


def test_gains_and_losses_are_against_the_first_scoring() -> None:
    second = scoring({"s1": [0.0], "s2": [9.0], "s3": [4.0], "s8": [8.5], "other": [0.0]})
    groups = ids([FIRST, second], 4)
    assert groups["gain"] == ("s1", "s8")
    assert groups["loss"] == ("s2",)
