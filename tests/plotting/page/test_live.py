"""Scenes of a store for a served page: read when the page requests them, in any number."""

import json
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.page import index_of, unpack
from support.pictures import fans
from support.scenes import make_scene

from trajformer.cli.view import scene_encoder
from trajformer.plotting.page.live import ROWS, LivePage, Query
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes import store as store_module
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

NUM_SCENES = 70


def scenes_named(count: int) -> list[Scene]:
    scene = make_scene()
    return [replace(scene, scene_id=f"scene {number:03d}") for number in range(count)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SceneStore:
    """70 scenes in 7 shards; their forecasts differ by `forecasts_of`."""
    folder = tmp_path_factory.mktemp("live")
    scenes = scenes_named(NUM_SCENES)
    for number in range(0, NUM_SCENES, 10):
        path = shard_path(folder, "val", number // 10)
        write_shard(path, scenes[number : number + 10], ShardInfo("synthetic", "val"))
    write_manifest(folder)
    return SceneStore(folder, "val")


def forecasts_of(store: SceneStore) -> dict[str, list[Any]]:
    """Forecasts of all scenes; errors rise, and fall again after scene 40."""
    found = {}
    for index in range(len(store)):
        scene = store[index]
        shift = 100.0 - abs(index - 40)
        moved = [replace(one, position=one.position + shift) for one in fans(scene)]
        found[scene.scene_id] = moved
    return found


def live_page(store: SceneStore, chosen: Sequence[int] | None = None, **given: Any) -> LivePage:
    files = given.get("files", [])
    names = [f"file {number}" for number in range(len(files))] + given.get("models", [])
    encode = scene_encoder(files, given.get("predictor"))
    order = range(len(store)) if chosen is None else chosen
    return LivePage(store, order, encode, files, names, "live")


def ids(answer: dict[str, Any]) -> list[str]:
    return [row["id"] for row in answer["rows"]]


def header_of(content: bytes) -> dict[str, Any]:
    return unpack(zlib.decompress(content))[0]


def test_the_list_has_pages(store: SceneStore) -> None:
    page = live_page(store)
    first = page.rows(Query())
    assert ids(first) == [f"scene {number:03d}" for number in range(ROWS)]
    assert first["more"]
    second = page.rows(Query(start=ROWS))
    assert ids(second) == [f"scene {number:03d}" for number in range(ROWS, NUM_SCENES)]
    assert not second["more"]
    assert second["rows"][0]["number"] == ROWS
    assert page.rows(Query(start=10**11))["rows"] == []


def test_ids_are_searched_in_the_order_of_the_list(store: SceneStore) -> None:
    assert ids(live_page(store).rows(Query(search="E 06"))) == [f"scene 06{i}" for i in range(10)]
    chosen = live_page(store, [65, 3, 61])
    assert ids(chosen.rows(Query(search="06"))) == ["scene 065", "scene 061"]
    assert chosen.find("scene 061") == 2
    assert chosen.find("scene 004") is None  # not on this page
    assert chosen.find("../scene") is None
    assert header_of(chosen.scene(1))["id"] == "scene 003"
    with pytest.raises(IndexError):
        chosen.scene(3)


def test_errors_of_forecast_files_sort_all_scenes(store: SceneStore) -> None:
    page = live_page(store, files=[forecasts_of(store)])
    query = Query(column=0, part=1)
    answer = page.rows(query)
    deadline = time.monotonic() + 120
    while answer["known"] < NUM_SCENES and time.monotonic() < deadline:
        time.sleep(0.05)
        answer = page.rows(query)
    page.close()
    errors = [row["errors"][0][1] for row in answer["rows"]]
    assert ids(answer)[0] == "scene 040"
    assert errors == sorted(errors, reverse=True)
    smallest = page.rows(replace(query, descending=False, search="04"))
    assert ids(smallest)[-1] == "scene 040"
    with pytest.raises(IndexError):
        page.rows(Query(column=1))


def test_a_model_forecasts_the_scene_that_is_opened(store: SceneStore) -> None:
    predictor = load_predictor("constant_velocity")
    page = live_page(store, predictor=predictor, models=["constant velocity"])
    assert page.rows(Query())["rows"][5]["errors"] == [None]
    content = page.scene(5)
    (forecast,) = header_of(content)["forecasts"]
    assert forecast["modes"] == [6] * len(forecast["agent"])
    assert header_of(content)["notice"] == ""
    assert page.scene(5) is content  # kept
    minimum = page.rows(Query())["rows"][5]["errors"][0]
    assert minimum == [pytest.approx(value) for value in minimum]
    assert minimum[1] > 0


def test_a_model_that_does_not_fit_leaves_the_recording_and_one_line(store: SceneStore) -> None:
    predictor = load_predictor("pretrained:se2former_simulated")
    page = live_page(store, predictor=predictor, models=["simulated"])
    header = header_of(page.scene(0))
    assert header["forecasts"][0]["agent"] == []
    assert "num_history 10 and num_future 12, but the training scenes" in header["notice"]
    assert "\n" not in header["notice"]


def test_the_first_answers_do_not_depend_on_the_number_of_scenes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One and 300 shards: equal bytes up to the digits of the count, and one shard is read."""
    read: list[Path] = []

    class CountedShard(store_module.Shard):
        def __init__(self, path: Path) -> None:
            read.append(path)
            super().__init__(path)

    monkeypatch.setattr(store_module, "Shard", CountedShard)
    sizes = {}
    for count in (1, 300):
        folder = tmp_path / str(count)
        first = shard_path(folder, "val", 0)
        write_shard(first, scenes_named(60), ShardInfo("synthetic", "val"))
        for number in range(1, count):
            os.link(first, shard_path(folder, "val", number))
        # every file has the checksum of the first one
        known = {shard_path(folder, "val", number): "0" * 64 for number in range(count)}
        write_manifest(folder, known)
        read.clear()
        page = live_page(SceneStore(folder, "val"))
        html = page.html().decode()
        index = index_of(html)
        assert index["live"]["count"] == 60 * count
        assert index["scenes"] == []
        rows = json.dumps(page.rows(Query()))
        sizes[count] = [len(html), len(rows), len(page.scene(0))]
        assert len(read) == 1
    for one, many in zip(sizes[1], sizes[300], strict=True):
        assert abs(one - many) < 20
