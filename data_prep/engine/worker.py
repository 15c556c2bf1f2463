"""The code of a worker process: makes the shards that arrive through a pipe."""

import gc
import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias

from data_prep.engine.tasks import ShardResult, prepare_shard
from trajformer.errors import TrajformerError

READY: Literal["ready"] = "ready"
Answer: TypeAlias = ShardResult | TrajformerError | Literal["ready"]


def serve(pipe: Connection, input_number: Any) -> None:
    """Send `READY`, then a result or an error for each task received, until the pipe is closed.

    `input_number` is a shared integer: the number of the input being read.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    gc.freeze()
    # Maps are many small objects without cycles: the search for cycles would take 4 % of the time.
    gc.set_threshold(100_000, 20, 50)

    def on_input(number: int) -> None:
        input_number.value = number

    answer: Answer = READY
    while True:
        pipe.send(answer)
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        except Exception as error:  # this process cannot import the reader
            answer = TrajformerError(f"a task cannot be read: {type(error).__name__}: {error}")
            continue
        try:
            answer = prepare_shard(task, on_input)
        except TrajformerError as error:
            answer = type(error)(str(error))  # without attributes that cannot be pickled
        except Exception as error:
            answer = TrajformerError(f"{task.path}: {type(error).__name__}: {error}")
        gc.collect()  # cycles of a library may hold large objects


def _exit_with_parent() -> None:
    """End this process when its parent ends, also when the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
