"""`trajformer store info` and `head`: printed tables and errors."""

import re
from collections.abc import Callable
from pathlib import Path

from support.stores import random_scene

import trajformer
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.scene import AgentRole
from trajformer.scenes.shard import Shard, ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

Run = Callable[..., tuple[int, str, str]]
Fails = Callable[..., str]


def various(root: Path) -> None:
    """A store of scenes with 2, 4 and 9 agents and 1, 0 and 5 polylines."""
    first = [random_scene(0, 2, 1), random_scene(1, 4, 0, future=False)]
    second = [random_scene(2, 9, 5, city="")]
    skipped = (("bad", "a reason"), ("b", "no"), ("c", "no"), ("d", "no"))
    first_info = ShardInfo("random", "train", skipped=skipped)
    second_info = ShardInfo("made", "train", software="0.0.7")
    write_shard(shard_path(root, "train", 0), first, first_info)
    write_shard(shard_path(root, "train", 1), second, second_info)
    write_shard(shard_path(root, "val", 0), [random_scene(3)], ShardInfo("random", "val"))
    write_manifest(root)


def test_info_prints_the_content_of_a_store(run: Run) -> None:
    various(Path("s"))
    size = sum(path.stat().st_size for path in Path("s/train").iterdir())
    code, text, _ = run("info", "s")
    assert code == 0
    title, train, origin, median, first_scene, *skipped, val = text.splitlines()[:9]
    assert title == "s: schema version 2"
    sizes = f"{size / 1e6:.1f} MB ({size / 3e3:.1f} kB a scene)"
    assert train == f"  train: 3 scenes, {sizes}, 2 shards"
    assert origin == f"    from made, random, prepared by version 0.0.7, {trajformer.__version__}"
    counts = "agents 4 (at most 9), polylines 1 (at most 5), points "
    assert median.startswith(f"    in the median scene: {counts}")
    clock = r"\d steps observed, \d to predict, 0\.\d s apart, positions in m"
    assert re.fullmatch(f"    first scene: {clock}", first_scene)
    assert skipped == [
        "    4 skipped",
        "    skipped bad: a reason",
        "    skipped b and 2 more: no",
    ]
    assert val.startswith("  val: 1 scenes")
    assert val.endswith(", 1 shard")


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
    code, _, error = run("info", "s")
    assert code == 1
    assert "s/train/00001.arrow: listed in the manifest but missing" in error


COLUMNS = [
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


def test_head_is_a_table_of_each_split(run: Run) -> None:
    various(Path("s"))
    code, text, _ = run("head", "s")
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "train: 3 of 3 scenes"
    assert lines[5] == "val: 1 of 1 scenes"
    assert lines[1].split() == COLUMNS
    assert lines[6].split() == COLUMNS
    assert len({len(line) for line in lines[1:5]}) == 1, "aligned"


def test_head_describes_each_scene(run: Run) -> None:
    various(Path("s"))
    lines = run("head", "s", "--split", "train")[1].splitlines()[2:]
    scenes = SceneStore("s", "train")
    sizes: list[int] = []
    for name in ("00000", "00001"):
        sizes.extend(Shard(Path(f"s/train/{name}.arrow")).row_bytes())
    for index, (line, scene, size) in enumerate(zip(lines, scenes, sizes, strict=True)):
        cells = dict(zip(COLUMNS, line.split(), strict=True))
        assert cells["index"] == str(index)
        assert cells["scene"] == scene.scene_id
        assert cells["agents"] == str(len(scene.agent_id))
        for role in (AgentRole.FOCAL, AgentRole.SCORED, AgentRole.CONTEXT):
            count = sum(scene.agent_role == role)
            assert cells[role.name.lower()] == str(count)
        assert cells["observed"] == str(scene.num_history)
        assert cells["polylines"] == str(len(scene.polyline_kind))
        assert cells["kB"] == f"{size / 1e3:.1f}"
    cells_of_scenes = [dict(zip(COLUMNS, line.split(), strict=True)) for line in lines]
    assert [cells["city"] for cells in cells_of_scenes] == ["Zürich", "Zürich", "-"]
    without_future = f"({scenes[1].num_future})"
    futures = [str(scenes[0].num_future), without_future, str(scenes[2].num_future)]
    assert [cells["future"] for cells in cells_of_scenes] == futures


def test_head_of_some_scenes(run: Run) -> None:
    various(Path("s"))
    [row] = run("head", "s", "--split", "train", "--count", 1)[1].splitlines()[2:]
    assert row.split()[:2] == ["0", "scene-0"]


def test_a_missing_split_and_other_folders_are_refused(error_of: Fails) -> None:
    various(Path("s"))
    message = "s: no split 'moon' (splits here: train, val)"
    assert message in error_of("head", "s", "--split", "moon")
    Path("empty").mkdir()
    assert "empty: not a store" in error_of("info", "empty")
