"""Muon and AdamW in one optimiser, against PyTorch's."""

from copy import deepcopy

import torch
from support.tensors import draw
from torch import nn

from trajformer.training.muon import Muon, orthogonal


def make_parameters() -> list[nn.Parameter]:
    return [nn.Parameter(draw(6, 10)), nn.Parameter(draw(10, 6)), nn.Parameter(draw(5)), nn.Parameter(draw(3, 4))]


def train(parameters: list[nn.Parameter], *optimizers: torch.optim.Optimizer) -> None:
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


def test_other_parameters_follow_pytorchs_adamw() -> None:
    ours, theirs = make_parameters(), make_parameters()
    train(ours, Muon([{"params": ours, "weight_decay": 0.1}], lr=0.01, betas=(0.9, 0.98)))
    train(theirs, torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.98), weight_decay=0.1))
    torch.testing.assert_close(ours, theirs)


def test_matrices_follow_pytorchs_muon() -> None:
    """PyTorch's orthogonalises in bfloat16, so steps agree to some percent of their size of about 0.006."""
    ours, theirs, start = make_parameters(), make_parameters(), make_parameters()
    options = {"lr": 0.01, "weight_decay": 0.1}
    train(
        ours, Muon([{"params": [ours[0], ours[1], ours[3]], "muon": True, **options}, {"params": [ours[2]], **options}], lr=1.0)
    )
    muon = torch.optim.Muon([theirs[0], theirs[1], theirs[3]], **options, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    train(theirs, muon, torch.optim.AdamW([theirs[2]], **options, betas=(0.9, 0.98)))
    for mine, other, before in zip(ours, theirs, start, strict=True):
        assert (mine - other).norm() < 0.05 * (other - before).norm()


def test_orthogonal_keeps_the_singular_vectors() -> None:
    matrix = draw(3, 8, 5)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    product = u.mT @ orthogonal(matrix) @ v.mT
    diagonal = product.diagonal(dim1=1, dim2=2)
    assert (product - torch.diag_embed(diagonal)).abs().max() < 1e-4
    assert diagonal.min() > 0.5 and diagonal.max() < 1.3


def test_a_resumed_run_is_identical() -> None:
    ours, resumed = make_parameters(), make_parameters()
    optimizer = Muon([{"params": ours[:2], "muon": True}, {"params": ours[2:]}], lr=0.01)
    train(ours, optimizer)
    for target, source in zip(resumed, ours, strict=True):
        target.data.copy_(source.data)
    other = Muon([{"params": resumed[:2], "muon": True}, {"params": resumed[2:]}], lr=0.5)
    other.load_state_dict(deepcopy(optimizer.state_dict()))
    train(ours, optimizer)
    train(resumed, other)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(resumed, ours, strict=True))
