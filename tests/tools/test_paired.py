"""Paired comparison of two models."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from paired import compare

from trajformer.errors import TrajformerError


def write(path: Path, error: np.ndarray) -> Path:
    ids = [f"{n // 2:03}" for n in range(len(error))]  # two agents in each scene
    pd.DataFrame({"scenario_id": ids, "track_id": [str(n % 2) for n in range(len(error))], "minFDE6": error}).to_csv(path)
    return path


def test_interval_of_a_paired_difference(tmp_path: Path) -> None:
    """Against the normal approximation; errors of scenes vary far more than the difference."""
    rng = np.random.default_rng(0)
    base, gap = rng.gamma(1.0, 2.0, 800), np.repeat(rng.normal(-0.1, 0.4, 400), 2)
    first = [write(tmp_path / f"a{n}.csv", base + gap + shift) for n, shift in enumerate((-0.2, 0.2))]
    row = compare(first, [write(tmp_path / "b.csv", base)], ["minFDE6"]).loc["minFDE6"]
    half = 1.96 * gap[::2].std() / 400**0.5
    np.testing.assert_allclose(row[["second", "difference"]], [base.mean(), gap.mean()], atol=1e-9)
    np.testing.assert_allclose(row[["low", "high"]], [gap.mean() - half, gap.mean() + half], atol=0.004)


def test_other_agents_are_an_error(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one.csv", np.ones(4)), write(tmp_path / "two.csv", np.ones(6))
    with pytest.raises(TrajformerError, match=r"two.csv: other agents than .*one.csv"):
        compare([one], [two], ["minFDE6"])
