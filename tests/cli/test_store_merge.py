"""`trajformer store merge`: copies of shards, refused stores, interrupted runs, damaged shards."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.prepared import content
from support.stores import CLOCK, make_store, random_scene, same_bits

from trajformer.scenes.manifest import MANIFEST, MERGED, read_manifest, verify_store, write_manifest
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import Shard, ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

Run = Callable[..., tuple[int, str, str]]
Fails = Callable[..., str]


def three_stores() -> list[Scene]:
    """Stores a, b and c with splits train and val; all train scenes in the order of a merge."""
    scenes = make_store(Path("a"), (2, 1)) + make_store(Path("b"), (1,), first=10)
    make_store(Path("b"), (2, 2), "val", first=20)
    make_store(Path("c"), (2,), "val", first=30)
    return scenes


SOURCES = {  # store of each shard of the merged one
    "train/00000": "a",
    "train/00001": "a",
    "train/00002": "b",
    "val/00000": "b",
    "val/00001": "b",
    "val/00002": "c",
}


def problems(store: str) -> list[str]:
    return verify_store(Path(store), lambda paths, total: paths)


def test_merging_copies_the_shards_byte_for_byte(run: Run) -> None:
    three_stores()
    before = {name: content(Path(name)) for name in "abc"}
    code, _, _ = run("merge", "a", "b", "c", "--out", "m")
    assert code == 0
    assert {name: content(Path(name)) for name in "abc"} == before
    files = content(Path("m"))
    assert files.keys() == {MANIFEST, MERGED, *(f"{name}.arrow" for name in SOURCES)}
    assert files["train/00002.arrow"] == before["b"]["train/00000.arrow"]
    assert files["val/00002.arrow"] == before["c"]["val/00000.arrow"]
    for name, store in SOURCES.items():
        assert files[f"{name}.arrow"] in before[store].values()


def test_merging_prints_and_records_the_stores(run: Run) -> None:
    three_stores()
    _, text, _ = run("merge", "a", "b", "c", "--out", "m")
    first, *_, last = text.splitlines()
    assert first.startswith("train: 4 scenes, 0.")
    assert ", 3 shards, 3 skipped" in first
    assert last == "m: merged from 3 stores"
    record = json.loads(Path("m/merged.json").read_text())
    assert record["stores"] == ["a", "b", "c"]
    assert record["shards"]["val/00002.arrow"]["from"] == "c/val/00000.arrow"


def test_a_merged_store_has_all_scenes_and_skipped_inputs(run: Run) -> None:
    scenes = three_stores()
    assert run("merge", "a", "b", "c", "--out", "m")[0] == 0
    for merged, scene in zip(SceneStore("m", "train"), scenes, strict=True):
        assert same_bits(merged, scene)
    assert SceneStore("m", "val").scene_ids() == [f"scene-{n}" for n in (20, 21, 22, 23, 30, 31)]
    train = read_manifest(Path("m"))["splits"]["train"]
    assert [entry["input"] for entry in train["skipped"]] == ["bad-0", "bad-1", "bad-0"]
    assert problems("m") == []


# ---- refused merges ----------------------------------------------------------------------------


def remove_store(root: Path) -> None:
    shutil.rmtree(root)


def remove_shard(root: Path) -> None:
    (root / "val/00001.arrow").unlink()


def older_version(root: Path) -> None:
    """Another schema version in the manifest."""
    manifest = json.loads((root / MANIFEST).read_text()) | {"schema_version": 1}
    (root / MANIFEST).write_text(json.dumps(manifest))


def newer_shard(root: Path) -> None:
    path = root / "val/00000.arrow"
    path.write_bytes(path.read_bytes().replace(b'"schema_version": 2', b'"schema_version": 9'))


def another_shard(*numbers: int, **clock: float) -> Callable[[Path], None]:
    """Add a shard of scenes with these numbers to the split val."""

    def write(root: Path) -> None:
        options = CLOCK | clock
        scenes = [random_scene(number, **options) for number in numbers]
        write_shard(shard_path(root, "val", 2), scenes, ShardInfo("random", "val"))
        write_manifest(root)

    return write


def occupy_output(_: Path) -> None:
    Path("m").mkdir()
    Path("m/notes.txt").write_text("mine")


def write_output_file(_: Path) -> None:
    Path("m").write_text("mine")


def move_into_c(root: Path) -> None:
    root.rename("c/b")


def change_nothing(_: Path) -> None:
    pass


ABC = "a b c --out m"
Change = Callable[[Path], None]  # of store b
REFUSED: dict[str, tuple[Change, str, str]] = {  # change, words of the command, message
    "nowhere": (remove_store, ABC, "b: no such store"),
    "shard missing": (remove_shard, ABC, "b: manifest.json does not list the shards on disk"),
    "shard of another version": (
        newer_shard,
        ABC,
        "b/val/00000.arrow: schema version 9, this software reads 2",
    ),
    "another version": (
        older_version,
        ABC,
        "b/manifest.json: schema_version 1, this software reads 2",
    ),
    "same id": (
        another_shard(50, 31),
        ABC,
        "c/val/00000.arrow: scene scene-31 is in split 'val' already: b/val/00002.arrow",
    ),
    "same id in one store": (
        another_shard(20),
        ABC,
        "b/val/00002.arrow: scene scene-20 is in split 'val' already: b/val/00000",
    ),
    "another clock": (
        another_shard(70, period_s=0.4),
        ABC,
        "split 'val' would have scenes of different clocks: period_s 0.1 and 0.4",
    ),
    "same store": (change_nothing, "a ./c/../b b --out m", "given twice"),
    "occupied": (occupy_output, ABC, "m: not empty"),
    "a file": (write_output_file, ABC, "m: not a folder"),
    "inside": (
        change_nothing,
        "a b --out b/m",
        "b/m: the new store and b must not contain each other",
    ),
    "around": (
        move_into_c,
        "a c/b --out c",
        "c: the new store and c/b must not contain each other",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_merges_are_refused_before_anything_is_written(error_of: Fails, case: str) -> None:
    three_stores()
    change, words, message = REFUSED[case]
    change(Path("b"))
    before = content(Path())
    assert message in error_of("merge", *words.split())
    assert content(Path()) == before


# ---- interrupted merges and damaged shards -----------------------------------------------------


class Copies:
    """Copies shards as a merge does, and is interrupted before copy number `interrupt_at`."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.interrupt_at: int | None = None

    def copy(self, source: Path, target: Path) -> None:
        if len(self.sources) == self.interrupt_at:
            Path(target).write_bytes(b"half")
            raise KeyboardInterrupt
        self.sources.append(str(source))
        Path(target).write_bytes(Path(source).read_bytes())


def test_an_interrupted_merge_resumes(
    run: Run, error_of: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_stores()
    copies = Copies()
    monkeypatch.setattr("trajformer.scenes.merge.shutil.copyfile", copies.copy)
    merge = ("merge", "a", "b", "c", "--out", "m")

    copies.interrupt_at = 3
    code, _, text = run(*merge)
    assert code == 130
    hint = "interrupted; shards copied by a merge are kept; run the same command again"
    assert text == f"trajformer store: {hint}\n"
    shards = {f"train/0000{n}.arrow" for n in range(3)}
    assert content(Path("m")).keys() == {MERGED} | shards

    Path("m/val").mkdir(exist_ok=True)
    Path("m/val/.00000.arrow.77.tmp").write_bytes(b"what a killed process leaves")
    damaged = Path("m/train/00001.arrow")  # the result of a power cut
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    other_merge = ("merge", "a", "c", "--out", "m")
    message = "m: not empty, and not from an earlier run of this merge"
    assert message in error_of(*other_merge)

    copies.interrupt_at = None
    copies.sources.clear()
    assert run(*merge)[0] == 0
    assert copies.sources == [
        "a/train/00001.arrow",
        "b/val/00000.arrow",
        "b/val/00001.arrow",
        "c/val/00000.arrow",
    ]
    assert not list(Path("m").rglob("*.tmp"))
    assert problems("m") == []

    copies.sources.clear()
    assert run(*merge)[0] == 0
    assert not copies.sources, "a finished merge can be run again"


def test_a_damaged_shard_is_not_merged(run: Run, error_of: Fails) -> None:
    """A shard that differs from its manifest is not copied; after its repair, the merge resumes."""
    three_stores()
    path = Path("b/val/00000.arrow")
    whole = path.read_bytes()
    value = Shard(path).scene(0).position[0, 0].tobytes()
    other_value = bytes([value[0] ^ 1]) + value[1:]
    path.write_bytes(whole.replace(value, other_value))
    merge = ("merge", "a", "b", "--out", "m")
    assert "b/val/00000.arrow: differs from its manifest" in error_of(*merge)
    assert not Path("m/manifest.json").exists()
    assert not Path("m/val/00000.arrow").exists()

    path.write_bytes(whole)
    assert run(*merge)[0] == 0
    assert run("verify", "m")[1] == "m: no problems\n"


def test_merged_stores_can_be_merged(run: Run) -> None:
    three_stores()
    assert run("merge", "a", "b", "--out", "m")[0] == 0
    assert run("merge", "m", "c", "--out", "n")[0] == 0
    assert len(SceneStore("n", "val")) == 6
