"""Options of `plan`, `prepare` and `estimate`."""

import math
from dataclasses import dataclass
from typing import Literal

from data_prep.engine.limits import MEMORY_GB, TIMEOUT_S
from trajformer.config import Config
from trajformer.scenes.plausibility import MAX_SPEED_M_S

_COUNT = (1, 10**9)
_LIMITS: dict[str, tuple[float, float]] = {
    "workers": _COUNT,
    "limit": _COUNT,
    "shard_size": _COUNT,
    "timeout_s": (1e-9, 86_400),
    "memory_gb": (1e-9, 1e6),
    "max_speed_m_s": (0, math.inf),
}


@dataclass(frozen=True)
class PrepareOptions(Config, limits=_LIMITS):
    """Options of `prepare`."""

    splits: tuple[str, ...] = ()  # empty: all
    workers: int = 1  # processes; with a `ray_address` the cluster decides
    limit: int | None = None  # number of inputs of each split
    # A shard is packed, written and checked while it fits into a cache of tens of megabytes.
    shard_size: int = 250
    strict: bool = False  # an unusable input is an error; otherwise it is skipped and listed
    timeout_s: float = TIMEOUT_S  # an input that takes longer is skipped
    # A scene with over 1 % faster steps is skipped; 0: no check of units.
    max_speed_m_s: float = MAX_SPEED_M_S
    overwrite: bool = False  # replace scenes from another raw folder or with other options
    memory_gb: float = MEMORY_GB  # an input that needs more memory is skipped
    retry_skipped: bool = False  # shards with skipped inputs are made again
    executor: Literal["local", "ray"] = "local"
    ray_address: str | None = None  # of a running cluster that shares the file system
    progress: bool = True
