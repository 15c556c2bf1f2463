"""Muon (Jordan et al. 2024) for hidden matrices and AdamW for other parameters, as one optimiser.

Muon replaces the momentum of a matrix by the nearest orthogonal one, found by five Newton-Schulz
steps, so all directions of a matrix learn at the same rate. PyTorch's Muon handles one matrix after
the other and in bfloat16, which is slow on a CPU; here all matrices of one shape are a batch in
single precision.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, as published
_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Muon, with Nesterov's look-ahead, for groups of matrices with `muon: True`.

    All other groups have AdamW, with `betas`.
    """

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
            if not parameters:
                continue
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            if group["muon"]:
                self._muon(group, parameters)
            else:
                self._adamw(group, parameters)
        return loss

    def _muon(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in parameters:
            by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
        momentum = group["momentum"]
        for shape, same_shape in by_shape.items():
            gradient = torch.stack(_gradients(same_shape))
            buffers = []
            for parameter in same_shape:
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                buffers.append(state["momentum_buffer"])
            torch._foreach_lerp_(buffers, list(gradient), 1 - momentum)
            update = orthogonal(gradient.lerp(torch.stack(buffers), momentum))
            # The mean size of a step is that of AdamW (Liu et al. 2025, section 2.2).
            rate = group["lr"] * 0.2 * math.sqrt(max(shape))
            torch._foreach_add_(same_shape, list(update), alpha=-rate)

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        means, squares, steps = [], [], []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] += 1
            means.append(state["exp_avg"])
            squares.append(state["exp_avg_sq"])
            steps.append(state["step"])

        beta1, beta2 = group["betas"]
        gradients = _gradients(parameters)
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)

        # Both moments start at zero, which is corrected for each number of steps.
        sizes = torch._foreach_sqrt(squares)
        torch._foreach_div_(sizes, [math.sqrt(1 - beta2**step) for step in steps])
        torch._foreach_add_(sizes, group["eps"])
        rates = [-group["lr"] / (1 - beta1**step) for step in steps]
        torch._foreach_addcdiv_(parameters, means, sizes, rates)


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def orthogonal(matrix: Tensor) -> Tensor:
    """Matrices [N, rows, columns] with the same singular vectors.

    Their singular values are about 0.7 to 1.2.
    """
    is_tall = matrix.shape[1] > matrix.shape[2]
    wide = matrix.mT if is_tall else matrix
    x = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)  # b s + c s s
        x = torch.baddbmm(x, polynomial, x, beta=a)  # a x + polynomial x
    return x.mT if is_tall else x
