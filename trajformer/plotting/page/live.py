"""Scenes of a store for a page that a program serves: each is read on request."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from trajformer.errors import TrajformerError, one_line
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting.page.build import index_block, page_frame
from trajformer.plotting.page.encode import EncodedScene, encode_scene, summarize_scene
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore

ROWS = 50  # of the list in one answer
IDS_PER_READ = 1000  # while ids are searched
CACHED_SCENES = 32
CACHED_SUMMARIES = 10_000

ByScene = Mapping[str, Sequence[TrackForecast]]


@dataclass(frozen=True)
class Query:
    """The requested part of the list.

    Attributes:
        start: number of the first row.
        search: only ids that contain this text, in any case.
        column: number of the forecast file whose minFDE sorts the rows; None: order of the store.
        part: 0 for minADE, 1 for minFDE.
        descending: the largest error first.
    """

    start: int = 0
    search: str = ""
    column: int | None = None
    part: int = 1
    descending: bool = True


class LivePage:
    """Answers of the page: itself, rows of its list, and scenes.

    Scenes have numbers, which are their places in the list; text of the page never becomes a path.
    One lock guards store and model, so one scene is read and forecast at a time.
    """

    def __init__(
        self,
        scenes: SceneStore,
        chosen: Sequence[int],
        encode: Callable[[Scene], EncodedScene],
        files: Sequence[ByScene],
        names: Sequence[str],
        title: str,
    ) -> None:
        """Arguments:

        scenes, chosen: a split, and the indices of its scenes in the order of the list. A `range`
            of all scenes needs no time and memory by scene.
        encode: a scene with its forecasts; a TrajformerError is shown above the recording.
        files: forecasts that exist, by scene id. They have errors before a scene is opened.
        names: of the forecasts of a scene: first of `files`, then of `encode`.
        title: heading of the page.
        """
        self.scenes = scenes
        self.chosen = chosen
        self.encode = encode
        self.files = files
        self.names = names
        self.title = title
        self._lock = threading.Lock()
        self._encoded: OrderedDict[int, EncodedScene] = OrderedDict()
        self._summaries: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._all_ids: list[str] = []
        self._errors: _ErrorTable | None = None

    def html(self) -> bytes:
        """The page without scenes; its size does not depend on their number."""
        head, tail = page_frame(requests=True)
        live = {"count": len(self.chosen), "rows": ROWS, "sortable": len(self.files)}
        index = index_block(title=self.title, files=list(self.names), scenes=[], live=live)
        return (head + index + tail).encode()

    def scene(self, number: int) -> bytes:
        """The scene with this number for `decodeScene` of the page, compressed.

        Raises IndexError: there is no such number. StoreError: its shard is damaged.
        """
        if not 0 <= number < len(self.chosen):
            raise IndexError(number)
        with self._lock:
            encoded = self._encoded.get(number)
            if encoded is None:
                encoded = self._encode(self.scenes[self.chosen[number]])
                _keep(self._encoded, number, encoded, CACHED_SCENES)
                _keep(self._summaries, number, encoded.summary, CACHED_SUMMARIES)
            return encoded.content

    def _encode(self, scene: Scene) -> EncodedScene:
        try:
            return self.encode(scene)
        except TrajformerError as error:
            no_forecasts: list[list[TrackForecast]] = [[] for _ in self.names]
            return encode_scene(scene, no_forecasts, notice=one_line(str(error)))

    def find(self, scene_id: str) -> int | None:
        """Number of the scene with this id, or None."""
        with self._lock:
            index = self.scenes.indices([scene_id]).get(scene_id)
        if index is None:
            return None
        try:
            return self.chosen.index(index)
        except ValueError:
            return None

    def rows(self, query: Query) -> dict[str, Any]:
        """Rows of the list, whether more follow, and how far errors are known if they sort it."""
        known: int | None = None
        order: Sequence[int] = range(len(self.chosen))
        if query.column is not None:
            if query.column >= len(self.files):
                raise IndexError(query.column)
            order, known = self._sorted(query)
        # one more than the rows, to know if more follow
        stop = query.start + ROWS + 1
        if query.search:
            selected = list(islice(self._matches(query.search, order), query.start, stop))
        else:
            selected = list(order[query.start : stop])
        rows = [self._row(number) for number in selected[:ROWS]]
        return {"rows": rows, "more": len(selected) > ROWS, "known": known}

    def close(self) -> None:
        """End the work in the background."""
        if self._errors is not None:
            self._errors.stop()

    def _row(self, number: int) -> dict[str, Any]:
        with self._lock:
            summary = self._summaries.get(number)
            if summary is None:
                summary = self._summarize(number)
                _keep(self._summaries, number, summary, CACHED_SUMMARIES)
        return {**summary, "number": number}

    def _summarize(self, number: int) -> dict[str, Any]:
        """The row of a scene; without errors if a forecast does not fit it."""
        scene = self.scenes[self.chosen[number]]
        forecasts = [file.get(scene.scene_id, []) for file in self.files]
        try:
            summary = summarize_scene(scene, forecasts)
        except TrajformerError:  # the page shows it when the scene is opened
            summary = summarize_scene(scene, [[] for _ in self.files])
        num_missing = len(self.names) - len(self.files)
        summary["errors"] += [None] * num_missing
        return summary

    def _matches(self, text: str, numbers: Sequence[int]) -> Iterator[int]:
        """The numbers of scenes with an id that contains a text, in the given order."""
        text = text.lower()
        for start in range(0, len(numbers), IDS_PER_READ):
            part = numbers[start : start + IDS_PER_READ]
            for number, scene_id in zip(part, self._ids(part), strict=True):
                if text in scene_id.lower():
                    yield number

    def _ids(self, numbers: Sequence[int]) -> list[str]:
        with self._lock:
            if isinstance(self.chosen, range) and isinstance(numbers, range):
                # all scenes in their order: read some shards only
                return self.scenes.id_range(numbers[0], numbers[-1] + 1)
            if not self._all_ids:
                self._all_ids = self.scenes.scene_ids()
        return [self._all_ids[self.chosen[number]] for number in numbers]

    def _sorted(self, query: Query) -> tuple[list[int], int]:
        """Numbers of scenes by error, unknown errors last, and how many scenes were read."""
        with self._lock:
            if self._errors is None:
                self._errors = _ErrorTable(len(self.chosen), len(self.files), self._row)
        known = self._errors.known
        assert query.column is not None
        values = self._errors.values[:, query.column, query.part]
        if query.descending:
            values = -values
        return np.argsort(values, kind="stable").tolist(), known


class _ErrorTable:
    """Errors of all scenes, which a thread computes once the list is sorted by them.

    `values` is float32 [scenes, files, 2] (minADE, minFDE), NaN where unknown; `known` is the
    number of scenes that were read.
    """

    def __init__(
        self, num_scenes: int, num_files: int, row: Callable[[int], dict[str, Any]]
    ) -> None:
        self.values = np.full((num_scenes, num_files, 2), np.nan, np.float32)
        self.known = 0
        self._row = row
        self._stopped = False
        threading.Thread(target=self._compute, daemon=True).start()

    def stop(self) -> None:
        self._stopped = True

    def _compute(self) -> None:
        for number in range(len(self.values)):
            if self._stopped:
                return
            errors = self._row(number)["errors"]
            for file in range(self.values.shape[1]):
                if errors[file] is not None:
                    self.values[number, file] = errors[file]
            self.known = number + 1


def _keep(cache: OrderedDict[int, Any], number: int, value: Any, most: int) -> None:
    """Add an entry, and drop the oldest ones."""
    cache[number] = value
    cache.move_to_end(number)
    while len(cache) > most:
        cache.popitem(last=False)
