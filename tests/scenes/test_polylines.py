"""Polylines are cut into equal pieces: number, ends, spacing, and no points between two polylines."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajformer.scenes.polylines import resample


def pieces(*lines: Any, points: int = 5, length: float = 20.0) -> tuple[np.ndarray, np.ndarray]:
    offset = np.cumsum([0, *map(len, lines)]).astype(np.int32)
    return resample(np.concatenate([np.asarray(line, np.float32) for line in lines]), offset, points, length)


def test_points_are_equidistant_in_arc_length_on_a_closed_ring() -> None:
    out, _ = pieces([(0, 0), (4, 0), (4, 4), (0, 4), (0, 0)], points=9)
    np.testing.assert_allclose(out[0], [(0, 0), (2, 0), (4, 0), (4, 2), (4, 4), (2, 4), (0, 4), (0, 2), (0, 0)], atol=1e-6)


def test_the_number_of_pieces_does_not_depend_on_rounding() -> None:
    """40 m in many segments give two pieces of 20 m at any position and angle, and after any other polyline."""
    rng = np.random.default_rng(0)
    angle, start = rng.uniform(-np.pi, np.pi, 200), rng.uniform(-300, 300, (200, 1, 2))
    along = np.linspace(0, 40, 12)[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)[:, None]
    _, owner = pieces(*(start + along))
    assert np.bincount(owner).tolist() == [2] * 200


def test_repeated_and_coinciding_points() -> None:
    out, owner = pieces([(0, 0), (0, 0), (4, 0), (4, 0), (4, 0), (8, 0), (8, 0)], [(2, 3), (2, 3)], [(2, 3), (2, 3), (2, 5)])
    assert owner.tolist() == [0, 1, 2]
    np.testing.assert_allclose(out[0], [(0, 0), (2, 0), (4, 0), (6, 0), (8, 0)], atol=1e-6)
    assert (out[1] == (2, 3)).all()
    np.testing.assert_allclose(out[2, :, 1], np.linspace(3, 5, 5), atol=1e-6)


def test_no_polyline() -> None:
    out, owner = resample(np.zeros((0, 2), np.float32), np.zeros(1, np.int32), 10, 20.0)
    assert out.shape == (0, 10, 2) and out.dtype == np.float32
    assert owner.shape == (0,) and owner.dtype == np.int64


walks = st.lists(st.tuples(st.floats(-40, 40), st.floats(-40, 40)), min_size=2, max_size=12)


@settings(max_examples=60)
@given(st.lists(walks, min_size=1, max_size=5), st.integers(2, 12), st.floats(3.0, 50.0))
def test_pieces_cover_every_line_evenly(lines: list[list[tuple[float, float]]], points: int, length: float) -> None:
    out, owner = pieces(*lines, points=points, length=length)
    assert np.isfinite(out).all() and (np.diff(owner) >= 0).all() and set(owner) == set(range(len(lines)))
    for number, line in enumerate(lines):
        steps = np.diff(np.asarray(line, np.float32).astype(np.float64), axis=0)
        parts, total = out[owner == number], float(np.hypot(*steps.T).sum())
        assert len(parts) == pytest.approx(max(math.ceil(total / length), 1), abs=int(total % length < 1e-3))
        np.testing.assert_allclose([parts[0, 0], parts[-1, -1]], [line[0], line[-1]], atol=1e-3)
        np.testing.assert_allclose(parts[1:, 0], parts[:-1, -1], atol=1e-3)
        assert np.hypot(*np.moveaxis(np.diff(parts, axis=1), -1, 0)).max() <= total / len(parts) / (points - 1) + 1e-3
        assert total / len(parts) <= length * (1 + 1e-4)
