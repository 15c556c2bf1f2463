"""Damaged and foreign shards raise StoreError and never crash."""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.stores import make_store, random_scene, same_bits

from trajformer.errors import SceneError, StoreError
from trajformer.scenes.shard import (
    LISTS,
    OPTIONAL,
    SCHEMA,
    Shard,
    ShardInfo,
    read_scene_ids,
    read_shard_info,
    shard_path,
    write_shard,
)
from trajformer.scenes.store import SceneStore


def rewrite(
    path: Path, change: Callable[[pa.RecordBatch], pa.RecordBatch], **metadata: object
) -> None:
    batch = change(pa.ipc.open_file(path).get_batch(0))
    key = b"trajformer"
    metadata_json = json.dumps(json.loads(batch.schema.metadata[key]) | metadata).encode()
    batch = batch.replace_schema_metadata(
        {key: metadata_json} if metadata != {"scenes": "none"} else None
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def with_column(
    name: str, change: Callable[[pa.Array], pa.Array]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda rows: rows.set_column(
        rows.schema.get_field_index(name), rows.schema.field(name), change(rows.column(name))
    )


def with_lists(
    name: str, end: Callable[[np.ndarray], int]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The same values, but the list of the first row ends elsewhere."""

    def change(column: pa.Array) -> pa.Array:
        offsets = column.offsets.to_numpy().copy()
        offsets[1] = end(offsets)
        return pa.ListArray.from_arrays(pa.array(offsets), column.values)

    return with_column(name, change)


BROKEN: dict[str, tuple[Callable[[pa.RecordBatch], pa.RecordBatch], str]] = {
    **{
        f"{name} moved": (with_lists(name, lambda o: o[1] + 1), "row 0: .* values, expected")
        for name in LISTS | OPTIONAL
    },
    **{
        f"{n} backwards": (with_lists(n, lambda o: o[-1] + 8), f"{n} has impossible offsets")
        for n in LISTS | OPTIONAL
    },
    "more steps": (
        with_column("num_steps", lambda c: pa.array([10**9] * len(c), c.type)),
        "row 0: valid has",
    ),
    "fewer steps": (
        with_column("num_steps", lambda c: pa.array([-1] * len(c), c.type)),
        "row 0: valid has",
    ),
    "null": (with_column("num_steps", lambda c: pa.array([None] * len(c), c.type)), "no nulls"),
    "a column less": (lambda batch: batch.drop_columns(["heading"]), "columns differ"),
    "a row less": (lambda batch: batch.slice(1), "2 scenes, expected 3 from the metadata"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_inconsistent_columns_are_refused(tmp_path: Path, case: str) -> None:
    change, message = BROKEN[case]
    scenes = [random_scene(seed, edges=2, optional=True) for seed in range(3)]
    write_shard(tmp_path / "0.arrow", scenes, ShardInfo("random", "train"))
    rewrite(tmp_path / "0.arrow", change)
    with pytest.raises(StoreError, match=rf"0\.arrow: .*{message}"):
        Shard(tmp_path / "0.arrow")


def test_damaged_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.arrow"
    write_shard(
        path,
        [random_scene(0, agent_id=("one", "two", "six")), random_scene(1)],
        ShardInfo("random", "train"),
    )
    whole = path.read_bytes()
    for before, after in (
        (b"one\ntwo", b"one two"),
        (b"one\ntwo", b"one\n\xff\xfe\xfd"),
        (b"two\nsix", b"t\n\n\n\n\nx"),
    ):
        assert whole.count(before) == 1
        path.write_bytes(whole.replace(before, after))
        with pytest.raises(StoreError, match=r"0\.arrow: row 0: damaged"):
            Shard(path).scene(0)
        assert Shard(path).scene(1).agent_id == ("0", "AV 1", "2")
    path.write_bytes(whole.replace(b"scene-0", b"sc\xffne-0"))
    for _ in range(2):
        for read in (read_scene_ids, lambda path: Shard(path).texts("scene_id")):
            with pytest.raises(StoreError, match=r"0\.arrow: "):
                read(path)
        path.write_bytes(whole)
        rewrite(path, with_column("scene_id", lambda ids: pa.array(["a", None], ids.type)))


OFFSETS = {
    "first": [1, 3, 8, 15],
    "negative": [-4, 3, 8, 15],
    "backwards": [0, 9, 8, 15],
    "last": [0, 3, 8, 999],
}


@pytest.mark.parametrize("case", OFFSETS)
def test_impossible_text_offsets_are_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "0.arrow"
    write_shard(
        path,
        [random_scene(0, scene_id=name) for name in ("one", "three", "seventh")],
        ShardInfo("random", "train"),
    )
    offsets = np.array([0, 3, 8, 15], np.int32).tobytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array(OFFSETS[case], np.int32).tobytes()))
    for read in (Shard, *([] if case == "first" else [read_scene_ids])):
        with pytest.raises(StoreError, match=r"0\.arrow: "):
            read(path)


def test_a_column_length_beyond_the_buffer_is_refused(tmp_path: Path) -> None:
    """A false length would cause reads beyond the file. In the file it precedes the null count."""
    path = tmp_path / "0.arrow"
    write_shard(path, [random_scene(0, 50, 30)], ShardInfo("random", "train"))
    count = int(Shard(path).scene(0).valid.sum())
    length = np.array([count, 0], np.int64).tobytes()
    content = path.read_bytes()
    assert content.count(length) == 1
    path.write_bytes(content.replace(length, np.array([1000 * count, 0], np.int64).tobytes()))
    with pytest.raises(StoreError, match=r"0\.arrow: not a readable shard"):
        Shard(path)


def test_flipped_bits_never_crash(tmp_path: Path) -> None:
    """Flips bits in values and in the Arrow metadata at both ends.

    Reading raises only StoreError.
    """
    make_store(tmp_path, (4, 1))
    path, rng = shard_path(tmp_path, "train", 0), random.Random(0)
    whole = path.read_bytes()
    metadata = [*range(2600), *range(len(whole) - 8000, len(whole))]
    for number in range(200):
        position = rng.choice(metadata) if number % 2 else rng.randrange(len(whole))
        content = bytearray(whole)
        content[position] ^= 1 << rng.randrange(8)
        path.write_bytes(content if number < 160 else whole[:position])
        read_all(tmp_path)


def read_all(root: Path) -> None:
    """Read all ids, sizes and scenes; only StoreError is accepted."""
    for use in (
        SceneStore.scene_ids,
        SceneStore.sizes,
        SceneStore.index,
        lambda store: store.find(["scene-3"]),
    ):
        with suppress(StoreError):
            use(SceneStore(root, "train"))
    with suppress(StoreError):
        store = SceneStore(root, "train")
        for index in range(len(store)):
            with suppress(StoreError):
                store[index]


@pytest.mark.parametrize("metadata", [{"scenes": "none"}, {"color": "red"}, {"skipped": [["a"]]}])
def test_a_file_that_is_not_a_shard(tmp_path: Path, metadata: dict[str, object]) -> None:
    make_store(tmp_path)
    path = shard_path(tmp_path, "train", 0)
    rewrite(path, lambda batch: batch, **metadata)
    for read in (read_shard_info, read_scene_ids, Shard):
        with pytest.raises(StoreError, match=r"00000\.arrow: not a trajformer shard: no metadata"):
            read(path)


def test_columns_of_optional_fields_exist_only_if_needed(tmp_path: Path) -> None:
    plain, full = random_scene(0, optional=False), random_scene(1, optional=True)
    for name, scenes, schema in (
        ("plain", [plain], SCHEMA.names),
        ("full", [plain, full], [*SCHEMA.names, *OPTIONAL]),
    ):
        write_shard(tmp_path / name, scenes, ShardInfo("random", "train"))
        assert pa.ipc.open_file(tmp_path / name).schema.names == schema
        assert all(
            same_bits(Shard(tmp_path / name).scene(row), scene) for row, scene in enumerate(scenes)
        )


INVALID = {"agent_size": np.zeros((2, 2), np.float32), "light_lane": np.array([0, 2], np.int32)}
INVALID["light_state"] = np.full((2, 4), 9, np.uint8)


@pytest.mark.parametrize("name", INVALID)
def test_invalid_optional_fields_are_refused(name: str) -> None:
    lights = {"light_lane": np.array([0, 1], np.int32), "light_state": np.zeros((2, 4), np.uint8)}
    random_scene(0, history=3, horizon=1, optional=False, **lights)
    for wrong in (INVALID[name], INVALID[name][:1] if name != "light_lane" else INVALID[name][:0]):
        with pytest.raises(SceneError, match=f"scene-0: ({name}|light_state): "):
            random_scene(0, history=3, horizon=1, optional=False, **lights | {name: wrong})
