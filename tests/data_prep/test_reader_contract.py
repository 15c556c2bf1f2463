"""All readers: the public contract on small raw folders.

Random damage is read in a process with limited memory.
"""

import math
import multiprocessing
import os
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support import hostile
from support.raw_folders import FOLDERS, built_in_readers

from data_prep.readers.names import READERS
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.scene import AgentKind, AgentRole, Scene
from trajformer.testing.readers import check_reader, check_round_trip, example_files

MAX_MB = 500  # growth of the memory by one raw folder
TRIES = int(12 * float(os.environ.get("TRAJFORMER_FUZZ", "1")))  # 10 tries 120 damages
# Lists of scenes or places, which `read` does not need.
LISTS = ("img_Sim2_city.json", "dataset_mapping.pkl", "dataset_summary.pkl")


@pytest.mark.parametrize("name", built_in_readers())
def test_every_data_set_is_tested(name: str) -> None:
    assert name in FOLDERS, f"tests/support/raw_folders.py: add a function {name}(raw)"


@pytest.mark.parametrize("name", FOLDERS)
def test_readers_fulfil_the_contract(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "raw"
    check_reader(FOLDERS[name](raw), raw, tmp_path)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_changed_file_is_read_again(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "raw"
    reader = FOLDERS[name](raw)
    items = [(item, split) for split in reader.splits(raw) for item in reader.inputs(raw, split)]
    for file in example_files(raw):
        for item, split in items:
            reader.read(item, split, raw)
        content = file.read_bytes()
        file.write_bytes(b"")
        refused = 0
        for item, split in items:
            try:
                reader.read(item, split, raw)
            except SceneError:
                refused += 1
        assert refused or file.name.endswith(LISTS), f"{file}: an old content is used"
        file.write_bytes(content)


@pytest.mark.parametrize("name", FOLDERS)
def test_units_and_sources_agree(tmp_path: Path, name: str) -> None:
    """Velocities are in the scene's unit per second, and moving vehicles head where they move."""
    reader = FOLDERS[name](tmp_path)
    for split in reader.splits(tmp_path):
        for item in reader.inputs(tmp_path, split):
            scene = reader.read(item, split, tmp_path).validate()
            assert (scene.source, scene.unit) == (name, "px" if name == "sdd" else "m")
            assert (scene.agent_role >= AgentRole.SCORED).any()
            now = scene.num_history - 1
            step = scene.position[:, now] - scene.position[:, now - 1]
            is_present = scene.valid[:, [now - 1, now]].all(1)
            moves = is_present & (np.hypot(*step.T) > 0.5)
            travel = scene.velocity[moves, now] * scene.period_s
            # The positions of Argoverse 1 are noisy.
            np.testing.assert_allclose(travel, step[moves], rtol=0.1, atol=0.2)
            drives = moves & np.isin(scene.agent_kind, (AgentKind.VEHICLE, AgentKind.BUS))
            along = np.arctan2(step[drives, 1], step[drives, 0])
            assert (np.cos(along - scene.heading[drives, now]) > 0.95).all()


OPTIONS: dict[str, dict[str, list[float]]] = {  # values outside their ranges
    "argoverse2_sensor": {
        "history_s": [5.03, math.nan],
        "future_s": [0.0],
        "stride_s": [0.25],
        "min_observed_s": [5.1],
    },
    "scenarionet": {
        "history_s": [0.1],
        "future_s": [0.05],
        "stride_s": [-0.1],
        "period_s": [0.0],
        "map_radius_m": [math.nan],
    },
    "eth_ucy": {"stride": [0], "num_history": [0], "num_future": [0], "tempo": [0.5, math.nan]},
    "interaction": {"stride": [0]},
    "table": {"stride": [0]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_outside_their_ranges_are_refused(name: str) -> None:
    for option, values in OPTIONS[name].items():
        for value in values:
            with pytest.raises(TrajformerError, match=f"^{option}: "):
                READERS[name](**{option: value})


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """One process: a crash raises BrokenProcessPool, endless reading a TimeoutError."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=hostile.limit_process) as pool:
        yield pool


@pytest.mark.parametrize("name", FOLDERS)
def test_random_damage_gives_scenes_or_one_line_errors(
    tmp_path: Path, process: ProcessPoolExecutor, name: str
) -> None:
    whole = tmp_path / "raw"
    reader = FOLDERS[name](whole)
    for file in example_files(whole):
        scenes: list[Scene] = []
        for seed in range(TRIES):
            raw = tmp_path / f"{file.name}-{seed}"
            shutil.copytree(whole, raw)
            rng = random.Random(f"{file.name} {seed}")
            damage = hostile.random_damage(file.suffix, rng)
            damage(raw / file.relative_to(whole))
            future = process.submit(hostile.read_checked, reader, raw)
            outcomes, growth_mb = future.result(timeout=60)
            scenes += [outcome for outcome in outcomes if isinstance(outcome, Scene)]
            assert growth_mb < MAX_MB, (file, seed)
            shutil.rmtree(raw)
        if scenes:
            check_round_trip(scenes, tmp_path)
