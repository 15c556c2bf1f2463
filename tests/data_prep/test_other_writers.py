"""Tables as other programs write them: other types, codecs and ids, but the same scenes."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.raw_folders import FOLDERS
from support.recordings import crowd, write_recording
from support.tables import SMALL, read, two_tracks

from data_prep.readers.eth_ucy import EthUcy
from trajformer.errors import SceneError
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.scene import AgentKind, Scene, scenes_equal

Change = Callable[[pa.Table], pa.Table]
TEXT = ("track_id", "object_type", "city")


def with_text(kind: pa.DataType) -> Change:
    def change(table: pa.Table) -> pa.Table:
        for name in TEXT:
            index = table.schema.get_field_index(name)
            table = table.set_column(index, name, table[name].cast(kind))
        return table

    return change


def with_number(kind: pa.DataType, *names: str) -> Change:
    def change(table: pa.Table) -> pa.Table:
        for name in names:
            index = table.schema.get_field_index(name)
            table = table.set_column(index, name, table[name].cast(kind))
        return table

    return change


def with_time_columns(table: pa.Table) -> pa.Table:
    start = pa.array([0] * len(table)).cast(pa.timestamp("ns"))
    for name in ("start_timestamp", "end_timestamp"):
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, start)
    return table


def as_pandas_writes(table: pa.Table) -> pa.Table:
    frame = table.to_pandas().astype({"timestep": "Int64", "object_category": "Int32"})
    return pa.Table.from_pandas(frame.set_index("track_id").reset_index())


SAME: dict[str, Change] = {
    "large text": with_text(pa.large_string()),
    "views of text": with_text(pa.string_view()),
    "dictionaries": with_text(pa.dictionary(pa.int32(), pa.string())),
    "large dictionaries": with_text(pa.dictionary(pa.uint32(), pa.large_string())),
    "another order": lambda table: table.select(sorted(table.column_names, reverse=True)),
    "small integers": with_number(pa.uint8(), "timestep", "object_category"),
    "steps as float": with_number(pa.float32(), "timestep"),
    "timestamps": with_time_columns,
    "pandas": as_pandas_writes,
}
CODECS = ("zstd", "lz4", "brotli", "gzip", "none")


def scenario(raw: Path, change: Change = lambda table: table, codec: str = "snappy") -> Scene:
    """The scene of a changed scenario."""
    reader = FOLDERS["argoverse2"](raw)
    [path] = raw.rglob("*.parquet")
    pq.write_table(change(pq.read_table(path)), path, compression=codec)
    [item] = reader.inputs(raw, "val")
    return reader.read(item, "val", raw).validate()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scenario(tmp_path_factory.mktemp("published") / "raw")


@pytest.mark.parametrize("case", SAME)
def test_types_of_columns_make_no_difference(tmp_path: Path, published: Scene, case: str) -> None:
    assert scenes_equal(scenario(tmp_path / "raw", SAME[case]), published)


@pytest.mark.parametrize("codec", CODECS)
def test_compression_makes_no_difference(tmp_path: Path, published: Scene, codec: str) -> None:
    assert scenes_equal(scenario(tmp_path / "raw", codec=codec), published)


def test_ids_may_be_numbers(tmp_path: Path, published: Scene) -> None:
    numbers = {name: str(100 + index) for index, name in enumerate(published.agent_id)}

    def change(table: pa.Table) -> pa.Table:
        ids = [int(numbers[name]) for name in table["track_id"].to_pylist()]
        index = table.schema.get_field_index("track_id")
        table = table.set_column(index, "track_id", pa.array(ids))
        return table.append_column("number", pa.array(ids))

    scene = scenario(tmp_path / "raw", change)
    assert set(scene.agent_id) == set(numbers.values())


def test_city_and_types_may_be_missing(tmp_path: Path, published: Scene) -> None:
    scene = scenario(tmp_path / "raw", lambda table: table.drop_columns(["city", "object_type"]))
    assert scene.city == ""
    assert set(scene.agent_kind.tolist()) == {AgentKind.UNKNOWN}
    assert (scene.position == published.position).all()


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="heading: no such column"):
        scenario(tmp_path / "raw", lambda table: table.drop_columns(["heading"]))
    with pytest.raises(SceneError, match="position_x: type duration"):
        scenario(tmp_path / "two", with_position_as_duration)


def with_position_as_duration(table: pa.Table) -> pa.Table:
    values = pc.cast(table["position_x"], pa.int64(), safe=False).cast(pa.duration("s"))
    return table.set_column(table.schema.get_field_index("position_x"), "position_x", values)


# ---- your tables ---------------------------------------------------------------------------------


def test_blanks_around_ids_make_no_difference(tmp_path: Path) -> None:
    table = two_tracks()
    expected = read(tmp_path / "a", table)
    spaced = table.assign(track_id=table.track_id.astype(object))
    spaced.iloc[2, spaced.columns.get_loc("track_id")] += " "
    spaced.iloc[4, spaced.columns.get_loc("track_id")] += "\u00a0"
    assert scenes_equal(read(tmp_path / "b", spaced), expected)


def test_an_id_of_two_types_is_one_id(tmp_path: Path) -> None:
    names = {name: str(index) for index, name in enumerate(sorted(set(two_tracks().track_id)))}
    table = two_tracks().assign(track_id=two_tracks().track_id.map(names).astype(object))
    expected = read(tmp_path / "a", table)
    mixed = table.copy()
    mixed.iloc[2, mixed.columns.get_loc("track_id")] += ".0"
    assert scenes_equal(read(tmp_path / "b", mixed), expected)
    # If all ids are written so, they are kept.
    decimal = table.assign(track_id=table.track_id + ".0")
    assert set(read(tmp_path / "c", decimal).agent_id) == {f"{name}.0" for name in names.values()}


@pytest.mark.parametrize("kind", ["float64", "Int64", "string", "category"])
def test_ids_of_a_parquet_file_may_have_any_type(tmp_path: Path, kind: str) -> None:
    names = {name: index + 7 for index, name in enumerate(sorted(set(two_tracks().track_id)))}
    frame: pd.DataFrame = two_tracks()
    frame["track_id"] = frame.track_id.map(names).astype(kind)
    path = tmp_path / "val" / "drive.parquet"
    path.parent.mkdir()
    frame.to_parquet(path)
    [item] = SMALL.inputs(tmp_path, "val")
    scene = SMALL.read(item, "val", tmp_path)
    assert set(scene.agent_id) == {str(number) for number in names.values()}


# ---- pedestrians ---------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["eth", "eth/test"])
def test_recordings_of_four_columns_are_the_same_scenes(tmp_path: Path, folder: str) -> None:
    write_recording(tmp_path / "long" / "eth" / "biwi_eth.txt", crowd())
    short = tmp_path / "short" / folder / "biwi_eth.txt"
    short.parent.mkdir(parents=True)
    rows = (tmp_path / "long" / "eth" / "biwi_eth.txt").read_text().splitlines()
    lines = []
    for row in rows:
        words = row.split()
        lines.append("\t".join((words[0], words[1], words[13], words[15])))
    short.write_text("\n".join(lines))
    scenes = []
    for raw in (tmp_path / "long", tmp_path / "short"):
        reader = EthUcy()
        assert reader.splits(raw) == ["eth_test"]
        scenes.append([reader.read(x, "eth_test", raw) for x in reader.inputs(raw, "eth_test")])
    assert scenes[0]
    for long_scene, short_scene in zip(*scenes, strict=True):
        assert scenes_equal(long_scene, short_scene)


def test_a_row_of_another_layout_is_named(tmp_path: Path) -> None:
    path = tmp_path / "eth" / "biwi_eth.txt"
    path.parent.mkdir()
    path.write_text("780 1 0.0 0.0\n790 1 0.5\n")
    reader = EthUcy()
    [item] = reader.inputs(tmp_path, "eth_test")
    with pytest.raises(SceneError, match="line 2: 3 columns, expected 4"):
        reader.read(item, "eth_test", tmp_path)


# One obstacle of the CommonRoad file has areas instead of positions.
UNUSABLE = {
    "commonroad": ["dynamicObstacle: predicted as occupied areas, which have no positions"],
}


def test_published_files_have_no_unusable_details(tmp_path: Path) -> None:
    for name, make in FOLDERS.items():
        reader = make(tmp_path / name)
        with collect_dropped() as dropped:
            for split in reader.splits(tmp_path / name):
                for item in reader.inputs(tmp_path / name, split):
                    reader.read(item, split, tmp_path / name)
        reasons = [reason for _, reason in dropped]
        assert reasons == UNUSABLE.get(name, []), name
