"""Muon (Jordan et al. 2024) for hidden matrices and AdamW for all other parameters, as one optimiser.

Muon replaces the momentum of a matrix by the nearest orthogonal one, found by five Newton-Schulz steps, so all directions of a
matrix learn at the same rate. PyTorch's Muon handles one matrix after the other and in bfloat16, which is slow on a CPU; here
all matrices of one shape are a batch in single precision.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, as published
_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Muon, with Nesterov's look-ahead, for groups of matrices with `muon: True`, AdamW for all others; `betas` are of AdamW."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        momentum: float = 0.95,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "momentum": momentum,
            "weight_decay": 0.0,
            "eps": 1e-8,
            "muon": False,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all parameters with a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                (self._muon if group["muon"] else self._adamw)(group, parameters)
        return loss

    def _muon(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in parameters:
            by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
        for shape, same in by_shape.items():
            gradient = torch.stack([parameter.grad for parameter in same])  # type: ignore[misc]
            buffers = [
                self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                for parameter in same
            ]
            torch._foreach_lerp_(buffers, list(gradient), 1 - group["momentum"])
            update = orthogonal(gradient.lerp(torch.stack(buffers), group["momentum"]))
            rate = (
                group["lr"] * 0.2 * math.sqrt(max(shape))
            )  # the mean size of an AdamW step (Liu et al. 2025, section 2.2)
            torch._foreach_add_(same, list(update), alpha=-rate)

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        states = [self.state[parameter] for parameter in parameters]
        for state, parameter in zip(states, parameters, strict=True):
            if not state:
                state |= {
                    "step": 0,
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
            state["step"] += 1
        (first, second), gradients = (
            group["betas"],
            [parameter.grad for parameter in parameters if parameter.grad is not None],
        )
        mean, square = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        torch._foreach_lerp_(mean, gradients, 1 - first)
        torch._foreach_mul_(square, second)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - second)
        size = torch._foreach_sqrt(square)
        torch._foreach_div_(size, [math.sqrt(1 - second ** state["step"]) for state in states])
        torch._foreach_add_(size, group["eps"])
        torch._foreach_addcdiv_(
            parameters,
            mean,
            size,
            [-group["lr"] / (1 - first ** state["step"]) for state in states],
        )


def orthogonal(matrix: Tensor) -> Tensor:
    """Matrices [N, rows, columns] with the same singular vectors and singular values of about 0.7 to 1.2."""
    wide = matrix if matrix.shape[1] <= matrix.shape[2] else matrix.mT
    x = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        square = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a
        )  # a x + (b s + c s s) x
    return x if wide is matrix else x.mT
