"""Tool that measures the rules of SE2Former's single forecast."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from research.single_forecast_rules import IN_USE, RULES, interval
from support.models import SE2FORMER
from support.scenes import varied_scenes

from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.testing.models import build_random


def test_the_difference_is_in_percent_and_scenes_are_drawn_as_a_whole() -> None:
    scene = np.array([0, 0, 1])
    reference = np.array([1.0, 3.0, 6.0])
    assert interval(1.1 * reference, reference, scene) == pytest.approx((10, 10, 10))
    better_in_one_scene = np.array([0.0, 3.0, 6.0])
    assert interval(better_in_one_scene, reference, scene) == pytest.approx((-10, -25, 0))


@torch.no_grad()
def test_rules_differ_and_keep_the_number_of_modes() -> None:
    batch = collate(varied_scenes(), BatchConfig(targets="all"))
    model = build_random(replace(SE2FORMER, nested=2)).eval()
    proposals = model.propose(batch.observation)
    results = {name: rule(proposals, torch.tensor(1.0), 2) for name, rule in RULES.items()}
    modes, logit = results.pop(IN_USE)
    for name, (other_modes, other_logit) in results.items():
        assert other_modes.shape == modes.shape and other_logit.shape == logit.shape
        same = torch.equal(other_modes, modes) and torch.equal(other_logit, logit)
        assert not same, name
