"""Samples as the plain text files that AgentFormer's public `eval.py` scores, so that figures can be checked from outside.

`FOLDER/samples/<recording>/frame_<last observed frame>/sample_<k>.txt` has a line for every scored pedestrian and predicted
frame: frame, pedestrian, x and y in the metres of the recording. `FOLDER/gt/<recording>/frame_<...>.txt` has what happened.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.evaluation.protocols.eth_ucy import NUM_FUTURE, NUM_HISTORY, Outcome, TestSet


class SampleFolder:
    """Writes the outcomes of a test set to a folder that appears when all are there: `with SampleFolder(...) as samples`.

    Raises:
        TrajformerError: there is such a folder already, and it has something in it.
    """

    def __init__(self, folder: Path, test_set: TestSet) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise TrajformerError(f"{folder}: exists already; samples are written to a new folder")
        self.folder, self.test_set = folder, test_set
        self._temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")

    def __enter__(self) -> SampleFolder:
        self._temporary.mkdir(parents=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            os.replace(self._temporary, self.folder)
        else:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def add(self, outcome: Outcome) -> None:
        """Write the windows of a batch."""
        position = outcome.forecast.in_city_frame(outcome.observation)
        for b, scene in enumerate(outcome.windows):
            places = outcome.truth.valid[b, :, -1].nonzero().squeeze(1).tolist()
            agents = [outcome.observation.agent_id[b][place] for place in places]
            step, first = self.test_set.frame_step[scene.city], int(scene.scene_id.rsplit("-", 1)[1])
            frames = [first + step * (NUM_HISTORY + future) for future in range(NUM_FUTURE)]
            name = f"{scene.city}/frame_{frames[0] - step:06d}"
            for k in range(outcome.forecast.num_modes):
                self._write(f"samples/{name}/sample_{k:03d}.txt", agents, frames, position[b, places, k])
            rows = [scene.agent_id.index(agent) for agent in agents]
            future = scene.position[rows, NUM_HISTORY:].astype(np.float64) + scene.origin
            self._write(f"gt/{name}.txt", agents, frames, future)

    def _write(self, name: str, agents: Iterable[str], frames: list[int], position: np.ndarray) -> None:
        path = self._temporary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"{frame} {int(float(agent))} {x:.4f} {y:.4f}"
            for agent, way in zip(agents, position.tolist(), strict=True)
            for frame, (x, y) in zip(frames, way, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n", encoding="ascii")
