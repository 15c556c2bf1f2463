"""Hundreds of broken inputs, made from real recordings, among whole ones: each is skipped and listed with a reason, in time and
within memory, and the whole ones become the very scenes that they become alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.hostile import LONGEST_S, Outcome, prepared
from support.hostile_folders import MIXTURES, WHOLE, Mixture

from data_prep.readers.names import READERS
from trajformer.scenes.scene import Scene, scenes_equal
from trajformer.scenes.store import SceneStore

LARGEST_MB = 700  # of memory: 200 for a process that has its libraries loaded, and 500 more
BROKEN = [(mixture, case) for mixture in MIXTURES for case in MIXTURES[mixture].cases]
Run = tuple[Mixture, Path, Outcome]
_runs: dict[str, Run] = {}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that stays until the last test."""
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture
def run(request: pytest.FixtureRequest, real_data: Path, cache: Path) -> Run:
    """A prepared mixture, its folder and what became of it; the tests of a mixture share one run."""
    name = request.param
    if name not in _runs:
        mixture, home = MIXTURES[name], cache / name.replace(" ", "-")
        put = mixture.put(real_data, cache / "unpacked")
        for case in WHOLE:
            put(home / "raw", case)
            put(home / "alone", case)
        for case, damage in mixture.harmless.items():
            damage(put(home / "raw", case))
        for case, (damage, _) in mixture.cases.items():
            damage(put(home / "raw", case))
        _runs[name] = mixture, home, prepared(mixture.reader, home / "raw", home / "store", **mixture.options)
    return _runs[name]


def reasons(outcome: Outcome, case: str) -> list[str]:
    """Why the inputs of a case were skipped."""
    name = re.compile(rf"(^|/){re.escape(case)}(/|\.\w+(#|$))")
    return [reason for item, reason in outcome.skipped.items() if name.search(item)]


@pytest.mark.parametrize(("run", "case"), BROKEN, indirect=["run"], ids=lambda value: str(value).replace(" ", "-"))
def test_a_broken_input_is_listed_with_its_reason(run: Run, case: str) -> None:
    mixture, _, outcome = run
    found = reasons(outcome, case)
    assert found, "not listed"
    for reason in found:
        assert re.search(mixture.cases[case][1], reason), reason
        assert reason.isprintable() and len(reason) < 520
        assert re.match(rf"(scene {re.escape(case)}\S*|\S*/\S+?(#\S+)?): ", reason), f"names no file: {reason}"
        assert "Traceback" not in reason and "took longer" not in reason and "killed" not in reason
        assert not re.match(r"\S+: \w+(Error|Exception|Warning|Invalid)\b", reason), f"a fault in the reader: {reason}"


@pytest.mark.parametrize("run", MIXTURES, indirect=True)
def test_whole_inputs_among_them_are_the_scenes_that_they_are_alone(run: Run) -> None:
    mixture, home, outcome = run
    reader, raw = READERS[mixture.reader](**mixture.options), home / "alone"
    alone = [reader.read(item, mixture.split, raw) for item in reader.inputs(raw, mixture.split)]
    expected = {scene.scene_id: scene for scene in alone}
    for case in mixture.harmless:
        expected |= {scene.scene_id.replace(WHOLE[0], case): scene for scene in alone if WHOLE[0] in scene.scene_id}
    found: dict[str, Scene] = {scene.scene_id: scene.validate() for scene in SceneStore(home / "store", mixture.split)}
    assert found.keys() == expected.keys()
    assert outcome.scenes == len(expected) >= len(WHOLE)
    for name, scene in found.items():
        assert scenes_equal(scene, replace(expected[name], scene_id=name, city=scene.city))


@pytest.mark.parametrize("run", MIXTURES, indirect=True)
def test_nothing_is_slow_large_or_noisy(run: Run) -> None:
    outcome = run[-1]
    assert outcome.cpu_seconds < LONGEST_S  # of all together; one that waits is listed as such
    assert outcome.peak_mb < LARGEST_MB
    assert not re.search("Warning|Traceback", outcome.errors), outcome.errors


ODD_NAMES = ("a\nb", "a\x1b[2J", ".hidden", "a\u202eb", "a\u2028b", "a\udcffb", "\u00e9" * 101, "x" * 230)


def test_names_that_are_no_names_of_scenes(real_data: Path, tmp_path: Path) -> None:
    put = MIXTURES["argoverse2"].put(real_data, tmp_path)
    for name in (*ODD_NAMES, "\u00e9" * 99, "a b$%&", "-rf"):
        put(tmp_path / "raw", name)
    outcome = prepared("argoverse2", tmp_path / "raw", tmp_path / "store")
    assert len(outcome.skipped) == len(ODD_NAMES)
    assert all("scene_id: not usable as a file name: " in reason for reason in outcome.skipped.values())
    assert set(SceneStore(tmp_path / "store", "val").scene_ids()) == {"\u00e9" * 99, "a b$%&", "-rf"}


def test_they_are_many_and_of_every_sort() -> None:
    assert len(BROKEN) == len(set(BROKEN)) >= 450
    assert {mixture.reader for mixture in MIXTURES.values()} == READERS.keys()
    assert min(len(mixture.cases) for mixture in MIXTURES.values()) > 35
