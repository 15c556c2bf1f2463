"""Any table at all: its scenes are valid and have the points of the table, or it is a SceneError; never anything else."""

import csv
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.reader import Input
from data_prep.readers.table.reader import Table
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.scene import Scene

READER = Table(period_s=0.5, num_history=2, num_future=2, stride=1)
COLUMNS = ("scene_id", "track_id", "step", "x", "y", "heading", "vx", "vy", "kind", "role", "city", "note")
ANY = settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

number = st.integers(-50, 50).map(lambda value: value / 8)
odd = st.sampled_from(["", "nan", "inf", "abc", "1e300", "-0", "1_0", "0x1", "7e5", "é", "a\nb", "../a", "NA", 'q"'])
good_cells = {
    "scene_id": st.sampled_from(["s", "t", "t-u"]),
    "track_id": st.sampled_from(["1", "2", "é"]),
    "step": st.integers(0, 6),
    "x": number,
    "y": number,
    "heading": st.sampled_from(["", 0.5, 6.0]),
    "vx": number,
    "vy": number,
    "kind": st.sampled_from(["vehicle", "bus", ""]),
    "role": st.sampled_from(["scored", "scored", "scored", "context", "focal", ""]),
    "city": st.just("here"),
    "note": st.text(max_size=3),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[object]]]:
    """Columns and rows; some have a cell that does not belong there, some lack a cell or have one too many."""
    velocity = draw(st.booleans())
    optional = [name for name in ("scene_id", "heading", "kind", "role", "city", "note") if draw(st.booleans())]
    columns = [name for name in COLUMNS if name in ("track_id", "step", "x", "y", *optional) or (velocity and name[0] == "v")]
    if draw(st.integers(0, 9)) == 0:
        columns.pop(draw(st.integers(0, len(columns) - 1)))
    if draw(st.integers(0, 3)) == 0:
        columns = ["timestamp" if name == "step" else name for name in columns]
    cells = good_cells | {"timestamp": st.integers(0, 6).map(lambda step: 0.5 * step + 3)}
    keys = [i for i, name in enumerate(columns) if name in ("scene_id", "track_id", "step", "timestamp")]
    unique = None if draw(st.integers(0, 9)) == 0 else lambda row: tuple(row[i] for i in keys)
    row = st.tuples(*(cells[name] for name in columns)).map(list)
    rows = draw(st.lists(row, min_size=draw(st.sampled_from([0, 5, 12])), max_size=25, unique_by=unique)) if keys else []
    rows = [row for row in rows if row]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2])) if rows else 0):
        row = draw(st.sampled_from(rows))
        row[draw(st.integers(0, len(row) - 1))] = draw(odd)
    if rows and draw(st.integers(0, 9)) == 0:
        draw(st.sampled_from(rows)).append("more")
    return columns, rows


def check(raw: Path, path: Path, columns: list[str], rows: list[list[object]]) -> None:
    """Read all inputs that the reader lists."""
    try:
        items = READER.inputs(raw, "val")
    except TrajformerError as error:
        pytest.fail(f"one file cannot clash with itself: {error}")
    assert items and all(isinstance(item, Input) and item.path == path for item in items)
    assert len({item.part for item in items}) == len(items)
    for item in items:
        try:
            scene = READER.read(item, "val", raw).validate()
        except SceneError as error:
            assert str(error).startswith(f"{path}: ")
            continue
        assert scene.scene_id == (item.part or path.stem)
        compare(scene, [dict(zip(columns, row, strict=True)) for row in rows], path.stem)


def compare(scene: Scene, rows: list[dict[str, object]], stem: str) -> None:
    """A scene has the points of its rows, found here a second time by plain means, and no others."""
    names = {str(row.get("scene_id", stem)) for row in rows}
    owner = scene.scene_id if scene.scene_id in names else scene.scene_id.rsplit("-t", 1)[0]
    mine = [row for row in rows if str(row.get("scene_id", stem)) == owner]
    if "step" not in mine[0]:
        begin = min(float(str(row["timestamp"])) for row in mine)
        mine = [row | {"step": round((float(str(row["timestamp"])) - begin) / 0.5)} for row in mine]
    steps = [int(float(str(row["step"]))) for row in mine]
    first = min(steps) if scene.scene_id == owner else int(scene.scene_id.rsplit("-t", 1)[1])
    expected = {
        (str(row["track_id"]), step - first): (float(str(row["x"])), float(str(row["y"])))
        for row, step in zip(mine, steps, strict=True)
        if first <= step < first + 4
    }
    agent, step = np.nonzero(scene.valid)
    xy = (scene.position[agent, step] + scene.origin).tolist()
    found = {(scene.agent_id[a], s): tuple(p) for a, s, p in zip(agent.tolist(), step.tolist(), xy, strict=True)}
    assert found.keys() == expected.keys()
    assert all(math.dist(found[key], expected[key]) < 1e-3 for key in found)


@ANY
@given(tables())
def test_any_table(tmp_path: Path, table: tuple[list[str], list[list[object]]]) -> None:
    columns, rows = table
    path = tmp_path / "val" / "drive.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    os.utime(path, ns=(0, np.random.default_rng().integers(2**60)))  # written again within one tick of the clock
    check(tmp_path, path, columns, rows)
