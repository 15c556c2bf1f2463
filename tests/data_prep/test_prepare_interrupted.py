"""After a kill, a stop or a full disk, the same command completes the store with the same bytes."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import fixtures
from support.prepared import content, preprocess_words
from support.processes import environment, run_python, session

SCENES, SHARD_SIZE = 400, 5


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 scenarios of Argoverse 2 in two splits, one broken."""
    folder = tmp_path_factory.mktemp("raw")
    first = {split: fixtures.write_argoverse2(folder, split=split, uuid="u-000").parent for split in ("train", "val")}
    for number in range(1, SCENES // 2):
        for split, source in first.items():
            copy = shutil.copytree(source, folder / split / f"u-{number:03d}")
            for file in list(copy.iterdir()):
                file.rename(copy / file.name.replace("u-000", f"u-{number:03d}"))
    (folder / "val" / "u-001" / "scenario_u-001.parquet").write_bytes(b"broken")
    return folder


@pytest.fixture(scope="module")
def uninterrupted(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of a store that was made without interruption."""
    store = tmp_path_factory.mktemp("uninterrupted")
    done = run_python(*command(raw, store))
    assert done.returncode == 0, done.stderr
    assert len(content(store)) == SCENES // SHARD_SIZE + 1
    return content(store)


def command(raw: Path, store: Path) -> list[str]:
    """The words of all tests."""
    return preprocess_words("argoverse2", raw, store, "--workers", 2, "--shard-size", SHARD_SIZE)


def start(raw: Path, store: Path) -> subprocess.Popen[str]:
    """Run the command in a new session, so that all its processes can be found."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    # The background jobs of a shell, and their children, ignore Ctrl-C.
    restore = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen([sys.executable, *command(raw, store)], text=True, env=environment(), preexec_fn=restore, **options)


def shards(store: Path) -> dict[str, tuple[int, int]]:
    """Every shard with its inode and time, which change when it is written again."""
    files = ((path, path.stat()) for path in store.glob("*/*.arrow"))
    return {path.relative_to(store).as_posix(): (stat.st_ino, stat.st_mtime_ns) for path, stat in files}


def wait_for_shards(running: subprocess.Popen[str], store: Path, count: int) -> None:
    """Wait until `count` shards are finished, or the command."""
    deadline = time.monotonic() + 120
    while len(shards(store)) < count and running.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def assert_gone(leader: int) -> None:
    """All processes of the session end soon."""
    deadline = time.monotonic() + 60
    while session(leader):
        assert time.monotonic() < deadline, f"still running: {session(leader)}"
        time.sleep(0.05)


def test_ten_kills_do_not_change_the_store(raw: Path, uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    store, rng = tmp_path / "store", random.Random(0)
    finished: dict[str, tuple[int, int]] = {}
    kills = 0
    while kills < 10:
        running = start(raw, store)
        if rng.random() < 0.8:  # otherwise kill it during the start
            wait_for_shards(running, store, len(finished) + rng.randint(1, 3))
        time.sleep(rng.uniform(0.0, 0.05))
        kills += running.poll() is None
        with suppress(ProcessLookupError):
            kill = os.killpg if kills % 2 else os.kill  # all processes, or the parent of the workers
            kill(running.pid, signal.SIGKILL)
        running.communicate()
        assert_gone(running.pid)
        if running.returncode == 0:  # it was faster than the kill: make the store incomplete again
            for path in (store / "manifest.json", *sorted(store.glob("*/*.arrow"))[::2]):
                path.unlink(missing_ok=True)
            finished = shards(store)
            continue
        now = shards(store)
        assert now | finished == now, "a finished shard was made again"
        finished = now
    assert finished
    running = start(raw, store)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert f" of {SCENES // 2 // SHARD_SIZE} shards were already finished" in out
    assert shards(store) | finished == shards(store)
    assert content(store) == uninterrupted


@pytest.mark.parametrize(("stop", "code", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_stopped_run_prints_one_line_and_leaves_no_process(raw: Path, tmp_path: Path, stop: str, code: int, word: str) -> None:
    store = tmp_path / "store"
    running = start(raw, store)
    wait_for_shards(running, store, 2)
    send = os.killpg if stop == "SIGINT" else os.kill  # a terminal sends Ctrl-C to all processes
    send(running.pid, signal.Signals[stop])
    _, err = running.communicate(timeout=60)
    again = "finished shards are kept; run the same command again to resume"
    assert (running.returncode, err) == (code, f"trajformer preprocess: {word}; {again}\n")
    assert_gone(running.pid)
    assert 2 <= len(shards(store)) < SCENES // SHARD_SIZE
    assert set(content(store)) == set(shards(store)), "no temporary file, no manifest"


def with_file_limit(words: list[str], size: int) -> list[str]:
    """The words with a limit on the size of a file, which fails like a full disk."""
    limit = f"import os, resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    command = [sys.executable, *words]
    return ["-c", f"{limit}; os.execv({command[0]!r}, {command!r})"]


def test_a_file_size_limit(raw: Path, uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    """Only the shard with the broken input fits: it has one scene fewer than the others."""
    store = tmp_path / "store"
    size = len(uninterrupted["val/00000.arrow"]) + 1
    assert [name for name, data in uninterrupted.items() if name.endswith(".arrow") and len(data) < size] == ["val/00000.arrow"]
    words = [*command(raw, store), "--split", "val"]
    done = run_python(*with_file_limit(words, size))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "arrow: cannot be written: " in done.stderr
    assert set(content(store)) <= {"val/00000.arrow"}
    done = run_python(*command(raw, store))
    assert done.returncode == 0
    assert content(store) == uninterrupted


def test_two_runs_at_once(raw: Path, uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    first = start(raw, tmp_path)
    wait_for_shards(first, tmp_path, 3)
    first.send_signal(signal.SIGSTOP)  # so that it cannot end before the second run begins
    try:
        assert first.poll() is None
        second = run_python(*command(raw, tmp_path))
    finally:
        first.send_signal(signal.SIGCONT)
    assert second.returncode == 1
    assert f"{tmp_path / 'train'}: another run is writing to this folder (process {first.pid} on" in second.stderr
    assert first.wait(timeout=120) == 0
    assert content(tmp_path) == uninterrupted
