"""docs/core.md, executed: the particle model learns its rule and follows a moved swarm."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "core.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


@pytest.fixture(scope="module")
def page() -> dict:
    """The names that the code blocks of the page define, in the order of the page."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 5
    names: dict = {"__name__": "page"}
    threads = torch.get_num_threads()
    exec("\n".join(blocks), names)
    torch.set_num_threads(threads)
    return names


def test_the_model_learns_the_rule(page: dict) -> None:
    assert page["mean_error"] < page["straight_error"] / 3


def test_a_moved_and_rotated_swarm_has_rotated_displacements(page: dict) -> None:
    for angle, shift in ((0.7, (5.0, 5.0)), (-3.0, (-40.0, 10.0))):
        angle = torch.tensor(angle)
        moved = page["moved"](page["test"], torch.tensor(shift), angle)
        with torch.no_grad():
            after = 0.1 * page["model"](moved)
        expected = page["rotated"](page["predicted"], angle)
        torch.testing.assert_close(after, expected, atol=1e-4, rtol=0)


def test_the_recorded_weights_are_those_of_real_tokens(page: dict) -> None:
    names = ["layers.0.attention.sublayer", "layers.1.attention.sublayer"]
    assert list(page["record"]) == names
    for (weights,) in page["record"].values():
        assert weights.shape == (3, 2, 6, 6)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 6))
        assert not weights[0, ..., 4:].any()
