"""The manifest and the verification of a store."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.stores import make_store, problems, random_scene

from trajformer.errors import StoreError
from trajformer.scenes.manifest import (
    MANIFEST,
    count_scenes,
    manifest_text,
    read_manifest,
    shard_sizes,
    write_manifest,
)
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard

INFO = ShardInfo("random", "train")
Keys = tuple[Any, ...]  # path of an entry in a manifest


def test_the_manifest_summarizes_the_shards(tmp_path: Path) -> None:
    make_store(tmp_path)
    split = read_manifest(tmp_path)["splits"]["train"]
    assert split["scenes"] == 5
    assert split["source"] == ["random"]
    assert [shard["scenes"] for shard in split["shards"]] == [3, 2]
    assert split["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("train/*.arrow"))
    assert split["skipped"] == [{"input": f"bad-{i}", "reason": "a reason"} for i in (0, 1)]
    assert problems(tmp_path) == []


def test_a_missing_or_unreadable_manifest(tmp_path: Path) -> None:
    make_store(tmp_path)
    without_checksum = json.dumps(read_manifest(tmp_path))
    for text in ("{", "\x00", '{"schema_version"', without_checksum):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(StoreError, match=r"manifest\.json: no readable manifest"):
            problems(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(StoreError, match=r"manifest\.json: no readable manifest"):
        problems(tmp_path)
    with pytest.raises(StoreError, match="empty: no store here"):
        write_manifest(tmp_path / "empty")


def entry(manifest: Any, keys: Keys) -> Any:
    for key in keys:
        manifest = manifest[key]
    return manifest


def write_changed(root: Path, manifest: Any, keys: Keys, value: Any) -> None:
    """Write a manifest with one entry replaced; without keys, write the value."""
    text = json.dumps(value)
    if keys:
        changed = copy.deepcopy(manifest)
        entry(changed, keys[:-1])[keys[-1]] = value
        text = manifest_text(changed)
    (root / MANIFEST).write_text(text)


def all_keys(value: Any, keys: Keys = ()) -> list[Keys]:
    """The paths of a value and of all values in it."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    paths = [keys]
    if isinstance(value, dict):
        for key, part in value.items():
            paths += all_keys(part, (*keys, key))
    return paths


def test_manifest_values_of_another_type_are_refused(tmp_path: Path) -> None:
    """Verifying names the entry; opening reads the shards instead."""
    make_store(tmp_path)
    manifest = read_manifest(tmp_path)
    message = r"manifest\.json: .*(schema_version|not a valid manifest entry)"
    for keys in all_keys(manifest):
        if keys[-2:-1] == ("source",):
            continue  # sources are compared with the shards, see below
        for value in (None, [], {}, 1.5, True, "text"):
            if isinstance(entry(manifest, keys), type(value)):
                continue
            write_changed(tmp_path, manifest, keys, value)
            with pytest.raises(StoreError, match=message):
                problems(tmp_path)
            counts = count_scenes(tmp_path, "train", shard_sizes(tmp_path / "train"))
            assert counts == {"00000.arrow": 3, "00001.arrow": 2}


def test_manifest_values_that_differ_from_the_shards(tmp_path: Path) -> None:
    make_store(tmp_path)
    manifest = read_manifest(tmp_path)
    for end in (
        ("scenes",),
        ("bytes",),
        ("shards", 0, "scenes"),
        ("shards", 0, "bytes"),
        ("shards", 0, "sha256"),
    ):
        keys = ("splits", "train", *end)
        value = entry(manifest, keys)
        other = value + 1 if isinstance(value, int) else value + "0"
        write_changed(tmp_path, manifest, keys, other)
        assert len(problems(tmp_path)) == 1, keys
    for name, other in (("source", ["elsewhere"]), ("skipped", []), ("source", [1])):
        write_changed(tmp_path, manifest, ("splits", "train", name), other)
        expected = f"{tmp_path / MANIFEST}: train: does not agree with its shards"
        assert problems(tmp_path) == [expected]


def remove_shard(root: Path) -> None:
    shard_path(root, "train", 1).unlink()


def add_shard(root: Path) -> None:
    shutil.copy(shard_path(root, "train", 0), shard_path(root, "train", 7))


def move_shard_outside(root: Path) -> None:
    """Move a shard out of its split and change its name in the manifest accordingly."""
    (root / "elsewhere").mkdir()
    manifest = read_manifest(root)
    os.replace(shard_path(root, "train", 1), root / "elsewhere" / "00001.shard")
    keys = ("splits", "train", "shards", 1, "name")
    write_changed(root, manifest, keys, "../elsewhere/00001.shard")


def add_split(root: Path) -> None:
    (root / "val").mkdir()
    shutil.copy(shard_path(root, "train", 0), shard_path(root, "val", 0))


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (remove_shard, "00001.arrow: listed in the manifest but missing"),
    "extra": (add_shard, "train/00007.arrow: on disk but not in the manifest"),
    "another split": (add_split, "val/00000.arrow: on disk but not in the manifest"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_verify_names_the_shard(tmp_path: Path, case: str) -> None:
    damage, message = DAMAGE[case]
    make_store(tmp_path)
    damage(tmp_path)
    [problem] = problems(tmp_path)
    assert message in problem


def test_a_manifest_with_a_shard_outside_of_its_split_is_refused(tmp_path: Path) -> None:
    make_store(tmp_path)
    move_shard_outside(tmp_path)
    with pytest.raises(StoreError, match=r"elsewhere/00001\.shard: not the name of a file"):
        problems(tmp_path)


def test_verify_validates_scenes(tmp_path: Path) -> None:
    scene = random_scene(0)
    broken = replace(scene, agent_kind=scene.agent_kind + np.uint8(100))
    write_shard(shard_path(tmp_path, "train", 0), [random_scene(1), broken], INFO)
    write_shard(shard_path(tmp_path, "train", 1), [random_scene(9), random_scene(1)], INFO)
    write_shard(shard_path(tmp_path, "val", 0), [random_scene(1)], ShardInfo("random", "val"))
    write_manifest(tmp_path)
    unknown, twice = problems(tmp_path)
    assert "row 1: scene scene-0: agent_kind: unknown kind" in unknown
    assert "00001.arrow: row 1: scene scene-1: occurs twice in its split" in twice


def test_verify_reports_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path)

    def fail(path: Path) -> str:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("trajformer.scenes.manifest.checksum", fail)
    assert [problem.count("Input/output error") for problem in problems(tmp_path)] == [1, 1]
