"""After a kill, the same command completes the store with the same bytes.

Other interruptions are tested in tests/uses.
"""

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

import pytest
from support import fixtures
from support.prepared import content, preprocess_words
from support.processes import environment, run_python, session

SCENES = 160
SHARD_SIZE = 4
KILLS = 6


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenarios of Argoverse 2 in two splits, one broken."""
    folder = tmp_path_factory.mktemp("raw")
    for split in ("train", "val"):
        first = fixtures.write_argoverse2(folder, split=split, uuid="u-000").parent
        for number in range(1, SCENES // 2):
            uuid = f"u-{number:03d}"
            copy = shutil.copytree(first, folder / split / uuid)
            for file in list(copy.iterdir()):
                file.rename(copy / file.name.replace("u-000", uuid))
    (folder / "val" / "u-001" / "scenario_u-001.parquet").write_bytes(b"broken")
    return folder


def command(raw: Path, store: Path) -> list[str]:
    return preprocess_words("argoverse2", raw, store, "--workers", 2, "--shard-size", SHARD_SIZE)


def start(raw: Path, store: Path) -> subprocess.Popen[str]:
    """Run the command in a new session, so that all its processes can be found."""
    # The background jobs of a shell, and their children, ignore Ctrl-C.
    restore = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, *command(raw, store)],
        text=True,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=restore,
    )


def shards(store: Path) -> dict[str, tuple[int, int]]:
    """Every shard with its inode and time, which change when it is written again."""
    identities = {}
    for path in store.glob("*/*.arrow"):
        stat = path.stat()
        identities[path.relative_to(store).as_posix()] = (stat.st_ino, stat.st_mtime_ns)
    return identities


def wait_for_shards(running: subprocess.Popen[str], store: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(shards(store)) < count and running.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def assert_gone(leader: int) -> None:
    deadline = time.monotonic() + 60
    while session(leader):
        assert time.monotonic() < deadline, f"still running: {session(leader)}"
        time.sleep(0.05)


def test_kills_do_not_change_the_store(raw: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    rng = random.Random(0)
    finished: dict[str, tuple[int, int]] = {}
    kills = 0
    while kills < KILLS:
        running = start(raw, store)
        if rng.random() < 0.8:  # otherwise kill it during the start
            wait_for_shards(running, store, len(finished) + rng.randint(1, 3))
        time.sleep(rng.uniform(0.0, 0.05))
        kills += running.poll() is None
        with suppress(ProcessLookupError):
            if kills % 2:
                os.killpg(running.pid, signal.SIGKILL)  # all processes
            else:
                os.kill(running.pid, signal.SIGKILL)  # the parent of the workers
        running.communicate()
        assert_gone(running.pid)
        if running.returncode == 0:  # it was faster than the kill: make the store incomplete again
            (store / "manifest.json").unlink(missing_ok=True)
            for path in sorted(store.glob("*/*.arrow"))[::2]:
                path.unlink()
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
    uninterrupted = tmp_path / "uninterrupted"
    assert run_python(*command(raw, uninterrupted)).returncode == 0
    assert content(store) == content(uninterrupted)
    assert len(content(store)) == SCENES // SHARD_SIZE + 1
