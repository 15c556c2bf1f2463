"""A process that reads raw folders one after the other, so that an input that ends its process is noticed."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.hostile import LONGEST_S, peak_mb

MEMORY = 8 << 30  # of address space: the machine is to survive what is looked for


@dataclass(frozen=True)
class Verdict:
    """What became of one input: scene, refused with a reason, or fault with a traceback."""

    kind: str
    text: str = ""


@dataclass(frozen=True)
class Reading:
    """What became of a raw folder, and what it took."""

    verdicts: list[Verdict]
    cpu_seconds: float
    grown_mb: float  # of peak memory since the process began to read


class Worker:
    """The process; a new one where it has died."""

    def __init__(self) -> None:
        self._process: Any = None

    def read(self, reader: str, options: dict[str, Any], raw: Path, split: str) -> Reading | str:
        """Read a raw folder; what killed the process, if anything did."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        self._pipe.send((reader, options, raw, split))
        if not self._pipe.poll(3 * LONGEST_S):
            self.end()
            return f"nothing after {3 * LONGEST_S} s"
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self.end()
            return f"the process died: {code}"

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def serve(pipe: Connection) -> None:
    """In the process: read what comes through the pipe until it ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("error", RuntimeWarning)
    from data_prep.readers.names import READERS

    first = peak_mb()
    while True:
        try:
            reader, options, raw, split = pipe.recv()
        except EOFError:
            return
        began = time.process_time()
        verdicts = read_all(READERS[reader](**options), raw, split)
        pipe.send(Reading(verdicts, time.process_time() - began, peak_mb() - first))


def read_all(reader: Any, raw: Path, split: str) -> list[Verdict]:
    """Read every input of a split and put what comes of it into a shard and back."""
    from trajformer.errors import SceneError, TrajformerError
    from trajformer.scenes.scene import scenes_equal
    from trajformer.scenes.shard import Shard, ShardInfo, write_shard

    verdicts = []
    try:
        items = reader.inputs(raw, split)
    except TrajformerError as error:
        return [Verdict("refused", str(error))]
    except Exception:
        return [Verdict("fault", traceback.format_exc())]
    for item in items:
        try:
            scene = reader.read(item, split, raw).validate()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "0.arrow"
                write_shard(path, [scene], ShardInfo(reader.name, split))
                assert scenes_equal(Shard(path).scene(0).validate(), scene)
            verdicts.append(Verdict("scene"))
        except SceneError as error:
            verdicts.append(Verdict("refused", str(error)))
        except Exception:
            verdicts.append(Verdict("fault", traceback.format_exc()))
    return verdicts
