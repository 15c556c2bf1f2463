"""Properties of an exported model, stored inside its files, and the names of these files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from trajformer.data.sample import BatchConfig
from trajformer.errors import UNREADABLE, TrajformerError, one_line
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.scenes.spec import DataSpec

METADATA_KEY = "trajformer"
MAP_GRAPH = "map"
FORECAST_GRAPH = "forecast"
ONNX = ".onnx"
PT2 = ".pt2"
FORMATS = (ONNX, PT2)
MAX_FILE_BYTES = 500_000_000  # 100 million weights; reading takes up to four times this memory
MAX_STEPS = 10_000  # of a history or a horizon
_FORMAT_VERSION = 1


@dataclass(frozen=True)
class ExportMetadata:
    """Properties of an exported model."""

    model: str  # name of the model class
    graph: str  # name of the graph in this file
    graphs: tuple[str, ...]  # of all files: `map` and `forecast`, or `forecast`
    spec: DataSpec  # clock, horizon and unit
    batch: BatchConfig  # how scenes become inputs
    inputs: dict[str, str]  # of this graph, in their order: type, shape and unit
    outputs: dict[str, str]
    agent_types: tuple[str, ...]  # name of each value of agent_kind
    version: str  # of trajformer
    commit: str  # of the source code, or empty
    weights_sha256: str  # of names, shapes and values

    def to_text(self) -> str:
        """JSON."""
        plain = asdict(self)
        plain["spec"] = self.spec.to_plain()
        plain["batch"] = to_plain(self.batch)
        return json.dumps({"format": _FORMAT_VERSION, **plain}, indent=1)

    @classmethod
    def from_text(cls, text: str | None, path: Path) -> ExportMetadata:
        """The inverse of `to_text` (TrajformerError: missing, damaged or of another version)."""
        if not text:
            raise TrajformerError(f"{path}: not a file of `trajformer export` (no metadata)")
        try:
            plain: dict[str, Any] = json.loads(text)
            version = plain.pop("format")
        except UNREADABLE as error:
            raise TrajformerError(f"{path}: damaged metadata: {one_line(error)}") from error
        if version != _FORMAT_VERSION:
            remedy = "export the model again"
            raise TrajformerError(f"{path}: format {version}, expected {_FORMAT_VERSION}; {remedy}")
        try:
            hints = get_type_hints(cls)
            for name, value in plain.items():
                if name in ("inputs", "outputs"):
                    texts = [*value.keys(), *value.values()]
                    if not all(isinstance(text, str) for text in texts):
                        raise TrajformerError(f"{name}: expected texts")
                else:
                    plain[name] = from_plain(hints[name], value, name)
            _check_clock(plain["spec"])
            return cls(**plain)
        except (TrajformerError, *UNREADABLE) as error:
            raise TrajformerError(f"{path}: damaged metadata: {one_line(error)}") from error


def _check_clock(spec: DataSpec) -> None:
    """Raise TrajformerError if the clock or the horizon is missing or no usable number."""
    limits = {"period_s": 60.0, "num_history": MAX_STEPS, "num_future": MAX_STEPS}
    for name, limit in limits.items():
        value = getattr(spec, name)
        if value is None or not 0 < value <= limit:
            raise TrajformerError(f"spec.{name}: {value}, expected more than 0, at most {limit:g}")


def graph_files(path: Path, graphs: tuple[str, ...]) -> dict[str, Path]:
    """The file of each graph: `path` of the forecast, and NAME.map.SUFFIX of the map next to it."""
    files = {FORECAST_GRAPH: path}
    if MAP_GRAPH in graphs:
        files[MAP_GRAPH] = path.with_suffix(f".{MAP_GRAPH}{path.suffix}")
    return files
