"""Properties of scenes: fields, the scenes a model was trained on, and differences."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from support.scenes import make_scene

from trajformer.errors import ConfigError, TrajformerError, TrajformerWarning
from trajformer.scenes.manifest import MANIFEST
from trajformer.scenes.spec import (
    DataSpec,
    check_scenes,
    same_split,
    warn_about_lanes,
    warn_about_maps,
)

SPEC = DataSpec(
    source="synthetic",
    split="train",
    unit="m",
    period_s=0.1,
    num_history=8,
    num_future=6,
    has_map=True,
    has_lanes=True,
)


def test_properties_of_a_scene() -> None:
    assert DataSpec.of(make_scene(2, 8, 6)) == SPEC
    assert DataSpec.of(make_scene(2, 8, 6, with_map=False)) == replace(
        SPEC, has_map=False, has_lanes=False
    )


def test_plain_values_have_the_known_properties_only() -> None:
    known = DataSpec(unit="m", num_history=8)
    assert known.to_plain() == {"unit": "m", "num_history": 8}
    assert DataSpec.from_plain(known.to_plain()) == known


def test_values_of_other_types_and_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="period_s: 1, expected float"):
        DataSpec(period_s=1)
    with pytest.raises(TrajformerError, match="speed"):
        DataSpec.from_plain({"speed": 3})


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("train", "train", True),
        ("train", "train.val", True),
        ("train.val", "train", True),
        ("train", "train_2", False),
        ("train.train", "train.val", False),
        ("train", "val", False),
    ],
)
def test_a_part_belongs_to_its_split(first: str, second: str, same: bool) -> None:
    assert same_split(first, second) == same


@pytest.mark.parametrize(
    ("trained_on", "source", "split", "contained"),
    [
        (("argoverse2", "train"), "argoverse2", "train", True),
        (("argoverse2", "train"), "argoverse2", "train.val", True),
        (("argoverse2", "train"), "argoverse2", "val", False),
        (("argoverse2", "train"), "argoverse1", "train", False),
        ((None, "train"), "argoverse1", "train", True),
        (("argoverse2", None), "argoverse2", "train", False),
        # the training part of a set of ETH/UCY holds the recordings of all other sets
        (("eth_ucy", "zara1_train"), "eth_ucy", "hotel_test", True),
        (("eth_ucy", "zara1_train"), "eth_ucy", "zara1_test", False),
        (("eth_ucy", "zara1_val"), "eth_ucy", "hotel_test", False),
        ((None, "zara1_train"), "table", "hotel_test", False),
    ],
)
def test_scenes_that_a_model_was_trained_on(
    trained_on: tuple[str | None, str | None], source: str, split: str, contained: bool
) -> None:
    scene = replace(make_scene(2), source=source, split=split)
    trained_source, trained_split = trained_on
    assert DataSpec(source=trained_source, split=trained_split).contains(scene) == contained


def test_equal_and_unknown_properties_are_no_difference() -> None:
    check_scenes(SPEC, SPEC, "store")
    check_scenes(SPEC, DataSpec(), "store")
    check_scenes(DataSpec(), SPEC, "store")
    check_scenes(replace(SPEC, source="other", split="val", has_map=False), SPEC, "store")
    # 0.1 s in single precision
    check_scenes(replace(SPEC, period_s=0.1 * (1 + 5e-7)), SPEC, "store")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"period_s": 0.1 * (1 + 1e-5)}, "period_s 0.100001, but the training scenes have 0.1"),
        (
            {"num_history": 9, "num_future": 5},
            "num_history 9 and num_future 5, but .* have 8 and 6",
        ),
        ({"unit": "px"}, "unit px, but .* have m; use data in m, or a model for px"),
    ],
)
def test_a_difference_is_an_error_with_both_values(changes: dict, message: str) -> None:
    with pytest.raises(TrajformerError, match=f"^store: split 'train': {message}"):
        check_scenes(replace(SPEC, **changes), SPEC, "store")


def test_the_error_names_the_owner_and_the_remedy(tmp_path: Path) -> None:
    longer = replace(SPEC, num_history=9)
    shorter = replace(SPEC, num_history=7)
    slower = replace(SPEC, period_s=0.2, num_history=4, num_future=3)
    faster = replace(SPEC, period_s=0.05, num_history=16, num_future=12)

    with pytest.raises(TrajformerError, match="but a file has 8; use a model that was trained on"):
        check_scenes(longer, SPEC, tmp_path, "a file has")
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(TrajformerError, match=r"store resample .* OUT --num-history 8$"):
        check_scenes(longer, SPEC, tmp_path)
    for too_short in (shorter, slower):
        with pytest.raises(TrajformerError, match="too short to be converted"):
            check_scenes(too_short, SPEC, tmp_path)
    # another period changes the numbers of steps, too
    other_period = replace(SPEC, period_s=0.2)
    options = "OUT --period-s 0.1 --num-history 8 --num-future 6$"
    for convertible in (faster, other_period):
        with pytest.raises(TrajformerError, match=options):
            check_scenes(convertible, SPEC, tmp_path)


@pytest.mark.parametrize(
    ("has_map", "with_map", "message"),
    [
        (True, 2, "store: 1 of 3 scenes have no map, but the training scenes have maps"),
        (True, 3, None),
        (False, 1, "store: 1 of 3 scenes have a map, but the training scenes have none"),
        (False, 0, None),
        (None, 1, None),
    ],
)
def test_warnings_about_maps(has_map: bool | None, with_map: int, message: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about_maps(with_map, 3, DataSpec(has_map=has_map), "store")
    expected = [] if message is None else [message]
    assert [str(warning.message) for warning in caught] == expected
    assert all(warning.category is TrajformerWarning for warning in caught)


@pytest.mark.parametrize(
    ("expected", "has_lanes", "message"),
    [
        (True, False, "store: the maps have no lanes, but those of the training scenes have"),
        (False, True, "store: the maps have lanes, but those of the training scenes have none"),
        (True, True, None),
        (None, True, None),
    ],
)
def test_warnings_about_lanes(expected: bool | None, has_lanes: bool, message: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about_lanes(has_lanes, DataSpec(has_map=True, has_lanes=expected), "store")
        warn_about_lanes(has_lanes, DataSpec(has_map=False, has_lanes=expected), "store")
    assert [str(warning.message) for warning in caught] == ([] if message is None else [message])
