"""Readers of misbehaving inputs. Every worker process imports this module, so it imports little."""

import os
import signal
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from support.scenes import make_scene

from data_prep.reader import Input
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import warn


def small_scene(name: str, agents: int = 2, steps: int = 5) -> Scene:
    return replace(
        make_scene(agents, 2, steps - 2, with_map=False, scene_id=name), source="odd", split="s"
    )


def odd_folder(raw: Path, *contents: str) -> Path:
    """RAW/s/<number>.txt, each with a word that selects the behaviour of the reader."""
    (raw / "s").mkdir(parents=True)
    for number, text in enumerate(contents):
        (raw / "s" / f"{number:03d}.txt").write_text(text)
    return raw


def reads(raw: Path) -> list[str]:
    """Names of the inputs read so far, in order, by any process."""
    return (raw.parent / "reads").read_text().split()


@dataclass(frozen=True)
class Odd:
    """Reads `odd_folder` and notes the names of inputs next to the raw folder."""

    name: ClassVar[str] = "odd"
    layout: ClassVar[str] = "RAW/<split>/*.txt"
    published: ClassVar[dict[str, int]] = {}

    def splits(self, raw: Path) -> list[str]:
        return sorted(path.name for path in raw.iterdir())

    def inputs(self, raw: Path, split: str) -> list[Input]:
        return [Input(path) for path in sorted((raw / split).glob("*.txt"))]

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        word, name = item.path.read_text(), item.path.stem
        with (raw.parent / "reads").open("a", errors="backslashreplace") as file:
            file.write(f"{name}\n")
        _fail(word, item.path)
        _end(word, reads(raw).count(name))
        _wait(word)
        scene = small_scene(name)
        if word == "warning":
            warn(f"{item.path}: looks odd")
            warn(f"{item.path}: looks odd")
            warnings.warn("deprecated", DeprecationWarning, stacklevel=2)
        if word == "nothing":
            return None  # type: ignore[return-value]
        if word == "agent":
            return replace(scene, agent_id=("", "b"))
        return replace(scene, city="\udcff") if word == "text" else scene


ERRORS = {
    "value": ValueError("a number\nis wrong"),
    "long": ValueError("long " * 10_000),
    "bug": ZeroDivisionError(),
}
ERRORS |= {"memory": MemoryError(), "arrow": pa.ArrowInvalid("no such column")}


def _fail(word: str, path: Path) -> None:
    if word in ERRORS:
        raise ERRORS[word]
    if word == "os":
        (path / "below").read_text()
    if word == "gigabyte":
        np.empty(1_000_000_000, np.uint8)  # is not touched
    if word == "recursion":
        _fail(word, path)


def _end(word: str, times: int) -> None:
    """End the process: always, or only the first time."""
    if word == "once" and times == 1:
        os._exit(3)
    if (
        word == "orphan"
        and times == 1
        and b"ray::" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    ):
        os.kill(os.getppid(), signal.SIGKILL)  # a worker of a Ray cluster, not the tests
        time.sleep(60)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "leave":
        raise SystemExit


def _wait(word: str) -> None:
    """Sleep for ten minutes; "deaf" also ignores the alarm."""
    if word == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(600)
    if word == "slow":
        with suppress(Exception):  # the time limit cannot be swallowed
            time.sleep(600)


@dataclass(frozen=True)
class Unreadable(Odd):
    """Unpickling it ends the process."""

    name: ClassVar[str] = "unreadable"

    def __reduce__(self) -> tuple:
        return os._exit, (3,)
