"""Any damage to a real file, at random: what comes of it is a sound scene or a reason, never a fault, a crash or a wait.

`TRAJFORMER_FUZZ=10` tries ten times as much.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support import hostile_folders, hostile_random, hostile_random_tables
from support.hostile import LONGEST_S, Damage, data
from support.hostile_folders import Put
from support.hostile_worker import Worker

LARGEST_MB = 500  # that reading one file may take
TIMES = float(os.environ.get("TRAJFORMER_FUZZ", "1"))
_number = itertools.count()


@dataclass(frozen=True)
class Target:
    """A file of a raw folder that is damaged."""

    reader: str
    split: str
    put: Callable[[Path, Path], Put]
    file: str = "."  # as seen from the file that `put` gives
    options: dict[str, Any] = field(default_factory=dict)


def beside(path: Path, pattern: str) -> Path:
    """The file itself, or one in its folder."""
    return path if pattern == "." else next(path.parent.glob(pattern))


@dataclass(frozen=True)
class Trial:
    """Tries damages on a target."""

    target: Target
    put: Put
    worker: Worker
    folder: Path

    def __call__(self, damage: Damage) -> list[str]:
        """Damage the file and read its folder: what became of its inputs, scene or refused."""
        raw = self.folder / str(next(_number))
        path = beside(self.put(raw, f"x{raw.name}"), self.target.file)
        damage(path)
        try:
            reading = self.worker.read(self.target.reader, self.target.options, raw, self.target.split)
        finally:
            shutil.rmtree(raw)
        assert not isinstance(reading, str), reading
        assert reading.cpu_seconds < LONGEST_S
        assert reading.grown_mb < LARGEST_MB
        for verdict in reading.verdicts:
            assert verdict.kind != "fault", verdict.text
            named = re.match(rf"({re.escape(str(raw))}/|scene )[^\n]+: [^\n]+$", verdict.text)
            assert verdict.kind == "scene" or named, verdict.text
        return [verdict.kind for verdict in reading.verdicts]


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """One process for all of them."""
    worker = Worker()
    yield worker
    worker.end()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that stays until the last test."""
    return tmp_path_factory.mktemp("hostile")


TARGETS = {
    "scenario": Target("argoverse2", "val", hostile_folders.argoverse2),
    "scenario-map": Target("argoverse2", "val", hostile_folders.argoverse2, "log_map_archive_*.json"),
    "sequence": Target("argoverse1", "val", hostile_folders.argoverse1),
    "city-map": Target("argoverse1", "val", hostile_folders.argoverse1, "../../map_files/*.xml"),
    "log": Target("argoverse2_sensor", "val", hostile_folders.sensor, options={"stride_s": 20.0}),
    "log-poses": Target("argoverse2_sensor", "val", hostile_folders.sensor, "city_SE3_egovehicle.feather", {"stride_s": 20.0}),
    "recording": Target("eth_ucy", "eth_test", hostile_folders.recordings, options={"stride": 30}),
    "table": Target("table", "val", hostile_folders.tables),
    "packed-table": Target("table", "val", partial(hostile_folders.tables, packed=True)),
}


@pytest.fixture
def trial(request: pytest.FixtureRequest, real_data: Path, worker: Worker, cache: Path, tmp_path: Path) -> Trial:
    """A target, ready to be damaged."""
    target = TARGETS[request.param]
    return Trial(target, target.put(real_data, cache / "unpacked"), worker, tmp_path)


def tries(count: int) -> Callable[[Any], Any]:
    """So many tries, the same ones every time."""
    off = list(HealthCheck)
    return settings(max_examples=int(count * TIMES), deadline=None, derandomize=True, database=None, suppress_health_check=off)


@pytest.mark.parametrize("trial", ["scenario", "scenario-map", "city-map", "log", "log-poses", "packed-table"], indirect=True)
def test_what_ends_too_soon_is_refused_wherever_it_ends(trial: Trial) -> None:
    for share in np.linspace(0.0, 1.0, int(25 * TIMES) + 1):
        kinds = trial(data(lambda whole, share=share: whole[: min(int(share * len(whole)), len(whole.rstrip()) - 1)]))
        assert set(kinds) == {"refused"}, share


@pytest.mark.parametrize("trial", TARGETS, indirect=True)
@tries(40)
@given(damage=hostile_random.bytes_damaged())
def test_any_bytes(trial: Trial, damage: Damage) -> None:
    trial(damage)


@pytest.mark.parametrize("trial", ["scenario", "packed-table"], indirect=True)
@tries(60)
@given(damage=hostile_random_tables.tables_damaged("parquet"))
def test_any_parquet_table(trial: Trial, damage: Damage) -> None:
    trial(damage)


@pytest.mark.parametrize("trial", ["log", "log-poses"], indirect=True)
@tries(30)
@given(damage=hostile_random_tables.tables_damaged("feather"))
def test_any_feather_table(trial: Trial, damage: Damage) -> None:
    trial(damage)


@pytest.mark.parametrize("trial", ["scenario-map"], indirect=True)
@tries(80)
@given(damage=hostile_random.json_damaged())
def test_any_json(trial: Trial, damage: Damage) -> None:
    trial(damage)


@pytest.mark.parametrize("trial", ["sequence", "city-map", "recording", "table"], indirect=True)
@tries(50)
@given(damage=hostile_random.words_damaged())
def test_any_words(trial: Trial, damage: Damage) -> None:
    trial(damage)
