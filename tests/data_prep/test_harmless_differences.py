"""Harmless differences between files, and names that are no file names."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.fixtures import write_argoverse2
from support.hostile import column, prefix, rows, table, text
from support.raw_folders import FOLDERS

from data_prep.readers.names import READERS
from trajformer.scenes.scene import Scene, scenes_equal
from trajformer.testing.readers import Damage, change_bytes, read_all


def shuffled(count: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(count)


def with_lists(whole: pa.Table) -> pa.Table:
    return whole.append_column("x", pa.array([[1.0]] * len(whole)))


def reversed_lines(data: bytes) -> bytes:
    return b"\n".join(data.splitlines()[::-1])


SCENARIOS: dict[str, Damage] = {
    "shuffled rows": table(rows(shuffled)),
    "row groups": table(lambda whole: whole, row_group_size=100),
    "another column": table(with_lists),
    "float steps": table(column("timestep", lambda values: values.cast(pa.float64()))),
    "small integers": table(column("object_category", lambda values: values.cast(pa.uint8()))),
    "dictionaries": table(column("object_type", lambda values: values.dictionary_encode())),
}
SCENARIO_MAPS: dict[str, Damage] = {
    "more fields": text("^{", '{"more": [1, {"a": null}], '),
}
SEQUENCES: dict[str, Damage] = {
    "Windows line ends": text("\n", "\r\n"),
    "byte order mark": prefix("\ufeff"),
}
RECORDINGS: dict[str, Damage] = {
    "tabs": text(" ", "\t"),
    "blank lines": text("\n", " \r\n \n"),
    "reversed rows": change_bytes(reversed_lines),
}


def check_same(name: str, pattern: str, change: Damage, folder: Path) -> None:
    """Changed files give the same scenes as the original ones."""
    reader = FOLDERS[name](folder / "raw")
    FOLDERS[name](folder / "changed")
    for path in (folder / "changed").rglob(pattern):
        change(path)
    split = reader.splits(folder / "raw")[0]
    scenes = read_all(reader, folder / "raw", split)
    changed_scenes = read_all(reader, folder / "changed", split)
    assert scenes
    for scene, changed in zip(scenes.values(), changed_scenes.values(), strict=True):
        assert isinstance(scene, Scene)
        assert isinstance(changed, Scene)
        assert scenes_equal(scene, changed)


@pytest.mark.parametrize("case", SCENARIOS)
def test_a_harmless_difference_of_argoverse2_tables(tmp_path: Path, case: str) -> None:
    check_same("argoverse2", "*.parquet", SCENARIOS[case], tmp_path)


@pytest.mark.parametrize("case", SCENARIO_MAPS)
def test_a_harmless_difference_of_argoverse2_maps(tmp_path: Path, case: str) -> None:
    check_same("argoverse2", "*.json", SCENARIO_MAPS[case], tmp_path)


@pytest.mark.parametrize("case", SEQUENCES)
def test_a_harmless_difference_of_argoverse1_tables(tmp_path: Path, case: str) -> None:
    check_same("argoverse1", "*.csv", SEQUENCES[case], tmp_path)


@pytest.mark.parametrize("case", RECORDINGS)
def test_a_harmless_difference_of_eth_ucy_recordings(tmp_path: Path, case: str) -> None:
    check_same("eth_ucy", "*.txt", RECORDINGS[case], tmp_path)


@pytest.mark.parametrize("name", ["a\nb", ".hidden", "a\u202eb", "a\udcffb", "x" * 230])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_argoverse2(tmp_path).parent
    for path in list(folder.iterdir()):
        path.rename(path.with_name(path.name.replace("s-1", name)))
    folder.rename(folder.with_name(name))
    [reason] = read_all(READERS["argoverse2"](), tmp_path, "val").values()
    assert "scene_id: not usable as a file name: " in str(reason)
