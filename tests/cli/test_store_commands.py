"""`trajformer store`: output, files and errors of info, head, verify, merge and export-scene."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import run as run_words
from support.prepared import content
from support.stores import CLOCK, fingerprint, make_store, random_scene, same_bits

import trajformer
from trajformer.errors import SceneError
from trajformer.scenes.export import export_scene, scene_to_arrays, scene_to_json
from trajformer.scenes.manifest import MANIFEST, MERGED, read_manifest, verify_store, write_manifest
from trajformer.scenes.scene import (
    AgentKind,
    AgentRole,
    EdgeKind,
    LaneFlag,
    LightState,
    PolylineKind,
    Scene,
)
from trajformer.scenes.shard import Shard, ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

Run, Fails = Callable[..., tuple[int, str, str]], Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `trajformer store ...` in an empty folder.

    Returns the exit status, standard output and standard error.
    """
    monkeypatch.chdir(tmp_path)
    return lambda *words: (run_words("store", *words), *capsys.readouterr())


@pytest.fixture
def error_of(fails: Fails) -> Fails:
    return lambda *words: fails("store", *words)


def various(root: Path) -> None:
    """A store of scenes with 2, 4 and 9 agents and 1, 0 and 5 polylines."""
    scenes = [
        random_scene(0, 2, 1),
        random_scene(1, 4, 0, future=False),
        random_scene(2, 9, 5, city=""),
    ]
    skipped = (("bad", "a reason"), ("b", "no"), ("c", "no"), ("d", "no"))
    write_shard(
        shard_path(root, "train", 0), scenes[:2], ShardInfo("random", "train", skipped=skipped)
    )
    write_shard(
        shard_path(root, "train", 1), scenes[2:], ShardInfo("made", "train", software="0.0.7")
    )
    write_shard(shard_path(root, "val", 0), [random_scene(3)], ShardInfo("random", "val"))
    write_manifest(root)


def test_info_prints_the_content_of_a_store(run: Run) -> None:
    various(Path("s"))
    code, text, _ = run("info", "s")
    size = sum(path.stat().st_size for path in Path("s/train").iterdir())
    lines = text.splitlines()
    assert (code, lines[0]) == (0, "s: schema version 2")
    assert (
        lines[1]
        == f"  train: 3 scenes, {size / 1e6:.1f} MB ({size / 3e3:.1f} kB a scene), 2 shards"
    )
    assert lines[2] == f"    from made, random, prepared by version 0.0.7, {trajformer.__version__}"
    assert lines[3].startswith(
        "    in the median scene: agents 4 (at most 9), polylines 1 (at most 5), points "
    )
    assert re.fullmatch(
        r"    first scene: \d steps observed, \d to predict, 0\.\d s apart, positions in m",
        lines[4],
    )
    assert lines[5:8] == [
        "    4 skipped",
        "    skipped bad: a reason",
        "    skipped b and 2 more: no",
    ]
    assert "  val: 1 scenes" in lines[8] and lines[8].endswith(", 1 shard")


def test_info_of_an_unfinished_store(run: Run) -> None:
    various(Path("s"))
    Path("s/manifest.json").rename("manifest.json")
    Path("s/train/.00002.arrow.7.tmp").write_bytes(b"half")
    code, text, _ = run("info", "s")
    assert code == 0
    note = "no manifest.json, the preparation is running or was interrupted; content so far"
    assert text.splitlines()[0] == f"s: schema version 2; {note}"
    assert "  train: 3 scenes" in text
    Path("manifest.json").rename("s/manifest.json")
    Path("s/train/00001.arrow").unlink()
    code, text, _ = run("info", "s")
    assert code == 0
    assert "; manifest.json does not list these shards, see `trajformer store verify s`" in text
    assert "  train: 2 scenes" in text


def test_head_is_a_table(run: Run, error_of: Fails) -> None:
    various(Path("s"))
    [row] = run("head", "s", "--split", "train", "--count", 1)[1].splitlines()[2:]
    assert row.split()[:2] == ["0", "scene-0"]
    assert "s: no split 'moon' (splits here: train, val)" in error_of(
        "head", "s", "--split", "moon"
    )
    Path("empty").mkdir()
    assert "empty: not a store" in error_of("info", "empty")
    scenes = [*SceneStore("s", "train"), *SceneStore("s", "val")]
    code, text, _ = run("head", "s")
    lines = text.splitlines()
    assert (code, lines[0], lines[5]) == (0, "train: 3 of 3 scenes", "val: 1 of 1 scenes")
    columns = [
        "index",
        "scene",
        "city",
        "agents",
        "focal",
        "scored",
        "context",
        "observed",
        "future",
        "polylines",
        "kB",
    ]
    assert lines[1].split() == lines[6].split() == columns
    assert len({len(line) for line in lines[1:5]}) == 1, "aligned"
    sizes = [
        *Shard(Path("s/train/00000.arrow")).row_bytes(),
        *Shard(Path("s/train/00001.arrow")).row_bytes(),
    ]
    for index, (line, scene, size) in enumerate(zip(lines[2:5], scenes, sizes, strict=False)):
        cells = dict(zip(columns, line.split(), strict=True))
        roles = [
            sum(scene.agent_role == role)
            for role in (AgentRole.FOCAL, AgentRole.SCORED, AgentRole.CONTEXT)
        ]
        assert [int(cells[name]) for name in ("focal", "scored", "context")] == roles
        assert (cells["index"], cells["scene"], cells["agents"]) == (
            str(index),
            scene.scene_id,
            str(len(scene.agent_id)),
        )
        assert (cells["observed"], cells["polylines"]) == (
            str(scene.num_history),
            str(len(scene.polyline_kind)),
        )
        assert cells["future"] == (f"({scene.num_future})" if index == 1 else str(scene.num_future))
        assert (cells["kB"], cells["city"]) == (
            f"{size / 1e3:.1f}",
            "-" if index == 2 else "Zürich",
        )


def three_stores() -> list[Scene]:
    """Stores a, b and c with splits train and val; all train scenes in the order of a merge."""
    scenes = make_store(Path("a"), (2, 1)) + make_store(Path("b"), (1,), first=10)
    make_store(Path("b"), (2, 2), "val", first=20)
    make_store(Path("c"), (2,), "val", first=30)
    return scenes


def test_merging_copies_the_shards_byte_for_byte(run: Run) -> None:
    scenes, before = three_stores(), {name: content(Path(name)) for name in "abc"}
    code, text, _ = run("merge", "a", "b", "c", "--out", "m")
    assert (code, text.splitlines()[-1]) == (0, "m: merged from 3 stores")
    assert (
        text.splitlines()[0].startswith("train: 4 scenes, 0.") and ", 3 shards, 3 skipped" in text
    )
    files = content(Path("m"))
    train = {"train/00000": "a", "train/00001": "a", "train/00002": "b"}
    from_where = train | {"val/00000": "b", "val/00001": "b", "val/00002": "c"}
    assert files.keys() == {MANIFEST, MERGED, *(f"{name}.arrow" for name in from_where)}
    assert files["train/00002.arrow"] == before["b"]["train/00000.arrow"]
    assert files["val/00002.arrow"] == before["c"]["val/00000.arrow"]
    assert all(
        files[f"{name}.arrow"] in before[store].values() for name, store in from_where.items()
    )
    assert {name: content(Path(name)) for name in "abc"} == before
    merged = SceneStore("m", "train")
    assert all(same_bits(a, b) for a, b in zip(merged, scenes, strict=True))
    assert SceneStore("m", "val").scene_ids() == [f"scene-{n}" for n in (20, 21, 22, 23, 30, 31)]
    skipped = [entry["input"] for entry in read_manifest(Path("m"))["splits"]["train"]["skipped"]]
    assert skipped == ["bad-0", "bad-1", "bad-0"]
    assert verify_store(Path("m"), lambda paths, total: paths) == []
    record = json.loads(Path("m/merged.json").read_text())
    assert (record["stores"], record["shards"]["val/00002.arrow"]["from"]) == (
        ["a", "b", "c"],
        "c/val/00000.arrow",
    )


def _older(root: Path) -> None:
    """Let a store say that it has another schema version."""
    manifest = json.loads((root / MANIFEST).read_text()) | {"schema_version": 1}
    (root / MANIFEST).write_text(json.dumps(manifest))


def _another_shard(*numbers: int, **clock: float) -> Callable[[Path], None]:
    """Adds a shard of scenes with these numbers to the split val."""

    def write(root: Path) -> None:
        scenes = [random_scene(number, **(CLOCK | clock)) for number in numbers]
        write_shard(shard_path(root, "val", 2), scenes, ShardInfo("random", "val"))
        write_manifest(root)

    return write


def _newer_shard(root: Path) -> None:
    path = root / "val/00000.arrow"
    path.write_bytes(path.read_bytes().replace(b'"schema_version": 2', b'"schema_version": 9'))


def _occupied(_: Path) -> None:
    Path("m").mkdir()
    Path("m/notes.txt").write_text("mine")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "nowhere": (lambda b: shutil.rmtree(b), "b: no such store"),
    "shard missing": (
        lambda b: (b / "val/00001.arrow").unlink(),
        "b: manifest.json does not list the shards on disk",
    ),
    "shard of another version": (
        _newer_shard,
        "b/val/00000.arrow: schema version 9, this software reads 2",
    ),
    "another version": (_older, "b/manifest.json: schema_version 1, this software reads 2"),
    "same id": (
        _another_shard(50, 31),
        "c/val/00000.arrow: scene scene-31 is in split 'val' already: b/val/00002.arrow",
    ),
    "same id in one store": (
        _another_shard(20),
        "b/val/00002.arrow: scene scene-20 is in split 'val' already: b/val/00000",
    ),
    "another clock": (
        _another_shard(70, period_s=0.4),
        "split 'val' would have scenes of different clocks: period_s 0.1 and 0.4",
    ),
    "same store": (lambda b: None, "given twice"),
    "occupied": (_occupied, "m: not empty"),
    "a file": (lambda b: Path("m").write_text("mine"), "m: not a folder"),
    "inside": (lambda b: None, "b/m: the new store and b must not contain each other"),
    "around": (lambda b: b.rename("c/b"), "c: the new store and c/b must not contain each other"),
}
# of the merge, if they are not "a b c --out m"
WORDS = {"same store": "a ./c/../b b --out m", "inside": "a b --out b/m", "around": "a c/b --out c"}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_merges_are_refused_before_anything_is_written(error_of: Fails, case: str) -> None:
    three_stores()
    change, message = REFUSED[case]
    change(Path("b"))
    before = content(Path())
    assert message in error_of("merge", *WORDS.get(case, "a b c --out m").split())
    assert content(Path()) == before


def test_an_interrupted_merge_resumes(
    run: Run, error_of: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_stores()
    words, copied, stop_at = ("merge", "a", "b", "c", "--out", "m"), [], [3, 99]

    def copy(source: Path, target: Path) -> None:
        if len(copied) == stop_at[0]:
            Path(target).write_bytes(b"half")
            raise KeyboardInterrupt
        copied.append(str(source))
        Path(target).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr("trajformer.scenes.merge.shutil.copyfile", copy)
    code, _, text = run(*words)
    hint = "interrupted; shards copied by a merge are kept; run the same command again"
    assert (code, text) == (130, f"trajformer store: {hint}\n")
    assert content(Path("m")).keys() == {MERGED, *(f"train/0000{n}.arrow" for n in range(3))}
    Path("m/val").mkdir(exist_ok=True)
    Path("m/val/.00000.arrow.77.tmp").write_bytes(b"what a killed process leaves")
    damaged = Path("m/train/00001.arrow")  # the result of a power cut
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    assert "m: not empty, and not from an earlier run of this merge" in error_of(
        "merge", "a", "c", "--out", "m"
    )
    stop_at.pop(0)
    assert run(*words)[0] == 0
    again = ["a/train/00001.arrow", "b/val/00000.arrow", "b/val/00001.arrow", "c/val/00000.arrow"]
    assert copied == ["a/train/00000.arrow", "a/train/00001.arrow", "b/train/00000.arrow", *again]
    assert (
        not list(Path("m").rglob("*.tmp"))
        and verify_store(Path("m"), lambda paths, total: paths) == []
    )
    assert run(*words)[0] == 0 and len(copied) == 7, "a finished merge can be run again"


def test_a_damaged_shard_is_not_merged(run: Run, error_of: Fails) -> None:
    """A shard that differs from its manifest is not copied; after its repair, the merge resumes."""
    three_stores()
    path = Path("b/val/00000.arrow")
    whole = path.read_bytes()
    value = Shard(path).scene(0).position[0, 0].tobytes()
    path.write_bytes(whole.replace(value, bytes([value[0] ^ 1]) + value[1:]))
    assert "b/val/00000.arrow: differs from its manifest" in error_of(
        "merge", "a", "b", "--out", "m"
    )
    assert not Path("m/manifest.json").exists() and not Path("m/val/00000.arrow").exists()
    path.write_bytes(whole)
    assert run("merge", "a", "b", "--out", "m")[0] == 0
    assert run("verify", "m")[1] == "m: no problems\n"
    assert run("merge", "m", "c", "--out", "n")[0] == 0  # merged stores can be merged
    assert len(SceneStore("n", "val")) == 6


def from_json(text: str) -> Scene:
    """A scene read from its JSON as the help describes it."""

    def no(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    told: dict[str, Any] = json.loads(text, parse_constant=no)
    agents, polylines, edges, lights = (
        told.pop(name) for name in ("agents", "polylines", "edges", "lights")
    )
    steps, points = len(agents[0]["valid"]), [polyline["points"] for polyline in polylines]
    return Scene(
        **told | {"origin": np.array(told["origin"])},
        agent_id=tuple(agent["id"] for agent in agents),
        agent_kind=np.array([AgentKind[agent["kind"]] for agent in agents], np.uint8),
        agent_role=np.array([AgentRole[agent["role"]] for agent in agents], np.uint8),
        position=np.array([agent["position"] for agent in agents], np.float32).reshape(
            -1, steps, 2
        ),
        heading=np.array([agent["heading"] for agent in agents], np.float32),
        velocity=np.array([agent["velocity"] for agent in agents], np.float32).reshape(
            -1, steps, 2
        ),
        valid=np.array([agent["valid"] for agent in agents], np.bool_),
        polyline_id=np.array([polyline["id"] for polyline in polylines], np.int64),
        polyline_kind=np.array(
            [PolylineKind[polyline["kind"]] for polyline in polylines], np.uint8
        ),
        polyline_flags=np.array(
            [sum(LaneFlag[flag] for flag in polyline["flags"]) for polyline in polylines], np.uint8
        ),
        polyline_offset=np.cumsum([0, *map(len, points)], dtype=np.int32),
        point=np.array([point for part in points for point in part], np.float32).reshape(-1, 2),
        edge=np.array([[edge["from"] for edge in edges], [edge["to"] for edge in edges]], np.int32),
        edge_kind=np.array([EdgeKind[edge["kind"]] for edge in edges], np.uint8),
        agent_size=np.array(
            [agent["size"] for agent in agents if "size" in agent], np.float32
        ).reshape(-1, 2),
        light_lane=np.array([light["lane"] for light in lights], np.int32),
        light_state=np.array(
            [[LightState[state] for state in light["states"]] for light in lights], np.uint8
        )
        if lights
        else np.zeros((0, 0), np.uint8),
    )


def from_npz(path: Path) -> Scene:
    with np.load(path, allow_pickle=False) as file:
        arrays: dict[str, Any] = dict(file)
    plain = {name: value.item() for name, value in arrays.items() if value.ndim == 0}
    return Scene(**arrays | plain | {"agent_id": tuple(arrays["agent_id"].tolist())})


@pytest.mark.parametrize("seed", range(12))
def test_an_exported_scene_is_the_same_scene(tmp_path: Path, seed: int) -> None:
    names = (
        {"agent_id": ("Zoë “7”\\", "車", " ", "a b")[: 1 + seed % 4], "city": "São Paulo"}
        if seed % 2
        else {}
    )
    scene = random_scene(seed, 1 + seed % 4, seed % 6, bool(seed % 3), odd=bool(seed % 5), **names)
    for name in ("scene.json", "scene.npz"):
        export_scene(scene, tmp_path / name)
    assert same_bits(from_json((tmp_path / "scene.json").read_text(encoding="utf-8")), scene)
    assert fingerprint(from_npz(tmp_path / "scene.npz")) == fingerprint(scene)


def test_invalid_scenes_are_not_exported(tmp_path: Path) -> None:
    scene = random_scene(0)
    broken = Scene(
        **{name: getattr(scene, name) for name in scene_to_arrays(scene)}
        | {"position": scene.position * np.nan}
    )
    with pytest.raises(SceneError, match="scene-0: position"):
        export_scene(broken, tmp_path / "scene.json")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="JSON compliant"):
        scene_to_json(broken)


def test_export_scene_finds_the_scene(run: Run, error_of: Fails) -> None:
    make_store(Path("s"), (2, 2))
    make_store(Path("s"), (1,), "val", first=3)
    code, text, _ = run("export-scene", "s", "--scene", "scene-2", "--out", "new/scene.json")
    assert (code, text) == (0, "new/scene.json: scene scene-2 of train, 3 agents, 2 polylines\n")
    assert same_bits(
        from_json(Path("new/scene.json").read_text(encoding="utf-8")), random_scene(2, **CLOCK)
    )
    words = ("export-scene", "s", "--scene", "scene-3", "--out", "scene.npz", "--overwrite")
    assert "s: scene scene-3 is in train and in val; choose with --split" in error_of(*words)
    assert run(*words, "--split", "val")[0] == 0
    assert from_npz(Path("scene.npz")).split == "val"
    assert "s: no scene nine in train, val" in error_of(
        "export-scene", "s", "--scene", "nine", "--out", "a.json"
    )
    assert "no split 'moon'" in error_of(*words, "--split", "moon")
    assert "a.xyz: must end in .json or .npz" in error_of(
        "export-scene", "s", "--scene", "scene-1", "--out", "a.xyz"
    )
