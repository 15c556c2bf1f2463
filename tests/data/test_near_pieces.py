"""Polylines near agents: the selection for many pairs equals that of all distances."""

import numpy as np
import pytest
from support.scenes import make_scene

from trajformer.data import sample
from trajformer.data.sample import BatchConfig, samples


@pytest.mark.parametrize("radius_m", [15.0, 80.0])
def test_many_pairs_select_the_same_pieces(
    radius_m: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BatchConfig(targets="all", map_radius_m=radius_m, map_slack_m=3.0)
    scenes = [make_scene(agents) for agents in range(2, 8)]
    monkeypatch.setattr(sample, "MAX_PAIRS", 10**9)
    expected = samples(scenes, config)
    monkeypatch.setattr(sample, "MAX_PAIRS", 7)
    for one, other in zip(samples(scenes, config), expected, strict=True):
        assert len(other.padded["polyline"])
        assert np.array_equal(one.padded["polyline"], other.padded["polyline"])
