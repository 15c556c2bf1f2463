"""A Ray cluster: the results of one machine, lost workers, and errors for the user."""

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import fixtures
from support.cli import run
from support.odd_readers import Odd, odd_folder, reads
from support.prepared import content, preprocess_words
from support.processes import ROOT, run_python
from support.scenes import make_scene

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.engine.ray_runner import OBJECT_STORE_BYTES
from data_prep.engine.tasks import KILLED
from data_prep.readers.argoverse1 import Argoverse1
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard

ray: Any = pytest.importorskip("ray")
LOCAL = PrepareOptions(shard_size=3, workers=2, timeout_s=2.0, progress=False)
ON_RAY = replace(LOCAL, executor="ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A small Ray on this machine, connected; its address."""
    worker_path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    variables = {"PYTHONPATH": worker_path, "OMP_NUM_THREADS": "1"}
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=OBJECT_STORE_BYTES,
        runtime_env={"env_vars": variables},
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def test_the_cluster_makes_the_same_bytes(cluster: str, tmp_path: Path) -> None:
    text = "fine kill fine fine value slow fine fine deaf fine once"
    words = text.split()
    stores = {}
    for name, options in (("local", LOCAL), ("ray", ON_RAY)):
        raw = odd_folder(tmp_path / name / "raw", *words)
        stores[name] = prepare(Odd(), raw, tmp_path / name / "store", options)
        assert reads(raw).count("001") == 2
        assert reads(raw).count("003") == 1
    assert content(tmp_path / "ray" / "store") == content(tmp_path / "local" / "store")
    skipped = dict(stores["ray"].skipped)
    assert list(skipped) == [f"s/{number:03d}.txt" for number in (1, 4, 5, 8)]
    assert skipped["s/001.txt"] == f"s/001.txt: {KILLED}"
    assert skipped["s/008.txt"] == "s/008.txt: took longer than 2 s"
    again = prepare(Odd(), raw, tmp_path / "ray" / "store", ON_RAY)
    assert again.splits[0].kept_shards == 4
    with pytest.raises(SceneError, match=r"00[14]\.txt: "):
        prepare(Odd(), raw, tmp_path / "strict", replace(ON_RAY, strict=True))


def test_a_lost_worker_is_replaced(cluster: str, tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "orphan", "fine", "fine")
    summary = prepare(Odd(), raw, tmp_path / "store", replace(ON_RAY, timeout_s=60.0))
    assert (summary.scenes, summary.skipped, reads(raw).count("001")) == (4, [], 2)


def test_the_command_finds_or_starts_a_cluster(cluster: str, tmp_path: Path) -> None:
    raw = fixtures.argoverse1_folder(tmp_path / "raw", sequences=5)
    prepare(Argoverse1(), raw, tmp_path / "local", replace(LOCAL, shard_size=2, timeout_s=60.0))
    options = ("--shard-size", 2, "--executor", "ray")
    for name, address in (("connected", ["--ray-address", cluster]), ("started", [])):
        words = preprocess_words("argoverse1", raw, tmp_path / name, *options, *address)
        done = run_python(*words)
        assert done.returncode == 0, done.stderr
        assert "train: 5 scenes" in done.stdout
        assert content(tmp_path / name) == content(tmp_path / "local")


def test_forecasts_and_scores_are_those_of_one_process(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = []
    for number in range(260):  # a whole part, and a second one of a few scenes
        scenes.append(make_scene(4, 4, 5, seed=number % 7, scene_id=f"s{number}"))
    path = shard_path(tmp_path / "store", "val", 0)
    write_shard(path, scenes, ShardInfo("synthetic", "val"))
    write_manifest(tmp_path / "store")
    monkeypatch.chdir(tmp_path)  # paths are relative to this folder, not to that of Ray
    model = ("--model", "constant_velocity", "--accelerator", "cpu", "--store", "store")
    for name, more in {"local": (), "ray": ("--cluster", "ray")}.items():
        forecasts = ("--out", f"{name}.parquet", "--workers", 1 if name == "local" else 2)
        assert run("predict", *model, *forecasts, *more) == 0
        # every further actor imports torch, which takes seconds
        one = ("--workers", 1, *more)
        files = ("--json", f"{name}.json", "--csv", f"{name}.csv")
        assert run("evaluate", *model, "--details", "dynamics", *files, *one) == 0
        scored = ("score", "local.parquet", "--store", "store", "--csv", f"{name}.score.csv")
        assert run(*scored, *one) == 0
    for suffix in ("parquet", "json", "csv", "score.csv"):
        assert Path(f"local.{suffix}").read_bytes() == Path(f"ray.{suffix}").read_bytes()


def test_a_missing_cluster_is_an_error_of_one_line(tmp_path: Path) -> None:
    raw = fixtures.argoverse1_folder(tmp_path / "raw", sequences=1)
    with socket.socket() as closed_port:
        closed_port.bind(("127.0.0.1", 0))
        for address in (f"127.0.0.1:{closed_port.getsockname()[1]}", "nonsense"):
            options = ("--executor", "ray", "--ray-address", address)
            done = run_python(*preprocess_words("argoverse1", raw, tmp_path / "store", *options))
            assert done.returncode == 1
            last_line = done.stderr.splitlines()[-1]
            assert last_line.startswith(f"trajformer preprocess: no Ray cluster at {address}: ")
            assert "Traceback" not in done.stderr


def test_ray_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TrajformerError, match=r"needs the package ray .*pip install ray"):
        prepare(Odd(), odd_folder(tmp_path / "raw", "fine"), tmp_path / "store", ON_RAY)
