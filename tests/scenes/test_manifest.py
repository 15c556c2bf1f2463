"""The manifest and the verification of a store."""

import functools
import json
import operator
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
    read_manifest,
    shard_sizes,
    write_manifest,
)
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard


def test_the_manifest_summarizes_the_shards(tmp_path: Path) -> None:
    make_store(tmp_path)
    split = read_manifest(tmp_path)["splits"]["train"]
    assert (split["scenes"], split["source"]) == (5, ["random"])
    assert [shard["scenes"] for shard in split["shards"]] == [3, 2]
    assert split["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("train/*.arrow"))
    assert split["skipped"] == [{"input": f"bad-{i}", "reason": "a reason"} for i in (0, 1)]
    assert problems(tmp_path) == []


def test_a_missing_or_unreadable_manifest(tmp_path: Path) -> None:
    make_store(tmp_path)
    for text in ("{", "\x00", '{"schema_version"'):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(StoreError, match=r"manifest\.json: no readable manifest"):
            problems(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(StoreError, match=r"manifest\.json: no readable manifest"):
        problems(tmp_path)
    with pytest.raises(StoreError, match="empty: no store here"):
        write_manifest(tmp_path / "empty")


def entry(manifest: Any, keys: tuple[Any, ...]) -> Any:
    return functools.reduce(operator.getitem, keys, manifest)


def replace_entry(root: Path, text: str, keys: tuple[Any, ...], value: Any) -> None:
    """Write a manifest with one entry replaced; without keys, write the value."""
    manifest = json.loads(text) if keys else value
    if keys:
        entry(manifest, keys[:-1])[keys[-1]] = value
    (root / MANIFEST).write_text(json.dumps(manifest))


def all_keys(value: Any, keys: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [keys, *(path for key, part in inner for path in all_keys(part, (*keys, key)))]


def test_manifest_values_of_another_type_are_refused(tmp_path: Path) -> None:
    """Verifying names the entry; opening reads the shards instead."""
    make_store(tmp_path)
    text = (tmp_path / MANIFEST).read_text()
    manifest = json.loads(text)
    for keys in all_keys(manifest):
        if keys == ("checksum",) or keys[-2:-1] == ("source",):
            continue  # a text without it is from an earlier version; sources are compared with the shards, see below
        for value in (None, [], {}, 1.5, True, "text"):
            if keys and isinstance(entry(manifest, keys), type(value)):
                continue
            replace_entry(tmp_path, text, keys, value)
            with pytest.raises(
                StoreError, match=r"manifest\.json: .*(schema_version|not a valid manifest entry)"
            ):
                problems(tmp_path)
            assert count_scenes(tmp_path, "train", shard_sizes(tmp_path / "train")) == {
                "00000.arrow": 3,
                "00001.arrow": 2,
            }


def test_manifest_values_that_differ_from_the_shards(tmp_path: Path) -> None:
    make_store(tmp_path)
    text = (tmp_path / MANIFEST).read_text()
    for end in (
        ("scenes",),
        ("bytes",),
        ("shards", 0, "scenes"),
        ("shards", 0, "bytes"),
        ("shards", 0, "sha256"),
    ):
        keys = ("splits", "train", *end)
        value = entry(json.loads(text), keys)
        replace_entry(tmp_path, text, keys, value + (1 if isinstance(value, int) else "0"))
        assert len(problems(tmp_path)) == 1, keys
    for name, value in (("source", ["elsewhere"]), ("skipped", []), ("source", [1])):
        replace_entry(tmp_path, text, ("splits", "train", name), value)
        assert problems(tmp_path) == [
            f"{tmp_path / MANIFEST}: train: does not agree with its shards"
        ]


def move_shard_outside(root: Path) -> None:
    """Move a shard out of its split and change its name in the manifest accordingly."""
    (root / "elsewhere").mkdir()
    manifest = json.loads((root / MANIFEST).read_text())
    os.replace(shard_path(root, "train", 1), root / "elsewhere" / "00001.shard")
    manifest["splits"]["train"]["shards"][1]["name"] = "../elsewhere/00001.shard"
    (root / MANIFEST).write_text(json.dumps(manifest))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        lambda root: shard_path(root, "train", 1).unlink(),
        "00001.arrow: listed in the manifest but missing",
    ),
    "extra": (
        lambda root: shard_path(root, "train", 7).write_bytes(
            shard_path(root, "train", 0).read_bytes()
        ),
        "train/00007.arrow: on disk but not in the manifest",
    ),
    "elsewhere": (move_shard_outside, "listed in the manifest but missing"),
    "another split": (
        lambda root: shutil.copytree(
            root / "train", root / "val", ignore=lambda *_: ["00001.arrow"]
        ),
        "val/00000.arrow: on disk but not in the manifest",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_verify_names_the_shard(tmp_path: Path, case: str) -> None:
    damage, message = DAMAGE[case]
    make_store(tmp_path)
    damage(tmp_path)
    assert [problem for problem in problems(tmp_path) if message in problem]
    assert len(problems(tmp_path)) == 1


def test_verify_validates_scenes(tmp_path: Path) -> None:
    broken = replace(random_scene(0), agent_kind=random_scene(0).agent_kind + np.uint8(100))
    write_shard(
        shard_path(tmp_path, "train", 0), [random_scene(1), broken], ShardInfo("random", "train")
    )
    write_shard(
        shard_path(tmp_path, "train", 1),
        [random_scene(9), random_scene(1)],
        ShardInfo("random", "train"),
    )
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
