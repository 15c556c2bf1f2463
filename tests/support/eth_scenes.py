"""Five small scenes of ETH/UCY for the protocol."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.recordings import Walk, write_recording
from torch import nn

from trajformer.cli.protocols import read_test_sets
from trajformer.data.sample import BatchConfig
from trajformer.evaluation.protocols import eth_ucy as protocol
from trajformer.models.forecaster import Predictor

H = 8
F = 12
FILES = {
    "eth": ["biwi_eth"],
    "hotel": ["biwi_hotel"],
    "univ": ["students001", "students003"],
    "zara1": ["crowds_zara01"],
    "zara2": ["crowds_zara02"],
}
Tracks = dict[str, tuple[int, np.ndarray]]  # by pedestrian: the first frame, positions [n, 2]


def walkers(seed: int, count: int = 9, frames: int = 26) -> Tracks:
    """Random pedestrians; the first three are present in all frames."""
    rng = np.random.default_rng(seed)
    tracks: Tracks = {}
    for number in range(count):
        first = 0
        length = frames
        if number >= 3:
            first = int(rng.integers(0, frames - 3))
            length = int(rng.integers(2, frames - first + 1))
        steps = rng.normal(0, 0.35, 2) + rng.normal(0, 0.12, (length, 2))
        start = 400.0 + rng.uniform(-3, 3, 2)
        tracks[f"{number + 1}.0"] = (first, start + steps.cumsum(0))
    return tracks


def write(path: Path, tracks: Tracks, first: int = 70) -> None:
    walks = [Walk(name, positions, start) for name, (start, positions) in tracks.items()]
    write_recording(path, walks, interval=1, first=first)


def counted(raw: Path, name: str) -> tuple[int, int]:
    """Windows and trajectories, counted from the text."""
    windows = 0
    trajectories = 0
    for path in sorted((raw / name).glob("*.txt")):
        frames_of: dict[str, set[int]] = {}  # by pedestrian
        for line in path.read_text().splitlines():
            frame, pedestrian = line.split()[:2]
            frames_of.setdefault(pedestrian, set()).add(round(float(frame)))
        for first in range(500):
            window = set(range(first, first + H + F))
            complete = sum(window <= frames for frames in frames_of.values())
            windows += complete > 0
            trajectories += complete
    return windows, trajectories


def write_scenes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write five small scenes, and let the protocol expect their counts."""
    for number, (name, files) in enumerate(FILES.items()):
        for part, file in enumerate(files):
            write(folder / name / f"{file}.txt", walkers(10 * number + part))
        monkeypatch.setitem(protocol.COUNTS, name, counted(folder, name))
    return folder


def read_set(raw: Path, name: str = "eth") -> protocol.TestSet:
    return next(test_set for test_set in read_test_sets(raw) if test_set.name == name)


def predictor(model: nn.Module) -> Predictor:
    return Predictor(model.eval(), BatchConfig(), torch.device("cpu"))


def outcomes(
    model: nn.Module, test_set: protocol.TestSet, batch_size: int = 1
) -> Iterator[protocol.Outcome]:
    return protocol.outcomes(predictor(model), test_set, batch_size=batch_size, progress=False)
