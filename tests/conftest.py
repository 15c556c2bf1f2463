"""Fixtures that several test files share."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from support.cli import error_line

from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.errors import HANGUP
from trajformer.scenes.scene import Scene

# Tests run small models: with more threads, these only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray lowers the priority of its workers, so they would wait for the tests of the other process.
os.environ.setdefault("RAY_worker_niceness", "0")
# Tests write 100,000 small files. In memory, if it has room, this takes half a minute less.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# `nohup` and background jobs of a shell ignore signals that tests send.
for number, action in (
    (signal.SIGINT, signal.default_int_handler),
    (HANGUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, action)

# By default an example fails if it takes 200 ms.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
REAL_DATA_VARIABLE = "TRAJFORMER_REAL_DATA"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the modules and tests, millions of objects, out of later collections of garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real recordings; without the variable, tests that need it are skipped."""
    folder = os.environ.get(REAL_DATA_VARIABLE)
    if not folder:
        pytest.skip(f"set {REAL_DATA_VARIABLE} to the folder of real recordings")
    if not Path(folder).is_dir():
        pytest.fail(f"{REAL_DATA_VARIABLE} is set, but there is no folder {folder}")
    return Path(folder)


@pytest.fixture(scope="session")
def unpack(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Unpacks real recordings into the official layout.

    Takes the name of the data set and words that select a part of it.
    """

    def run(name: str, *words: str) -> Path:
        out = tmp_path_factory.mktemp(name)
        command = [sys.executable, real_data / name / "unpack.py", out, *words]
        subprocess.run(command, check=True, capture_output=True)
        return out

    return run


@pytest.fixture(scope="session")
def interaction_slice(unpack: Callable[..., Path]) -> Path:
    """Two recordings and two validation cases of each location of INTERACTION."""
    return unpack("interaction", "--limit", "2")


@pytest.fixture(scope="session")
def argoverse2_scenes(real_data: Path) -> list[Scene]:
    """The real scenes of Argoverse 2 with a recorded future."""
    reader = Argoverse2()
    raw = real_data / "argoverse2"
    scenes = []
    for split in ("train", "val"):
        for item in reader.inputs(raw, split):
            scenes.append(reader.read(item, split, raw))
    return scenes


@pytest.fixture
def fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """The error message of a command line that runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: error_line(capsys, *words)
