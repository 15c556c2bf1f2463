"""A simulated accelerator, the device "sim".

It finds tensors on the wrong device and counts waits of the host for the device. A tensor of the
device is a wrapper around a CPU tensor, and each operator computes on the CPU. As with a GPU, the
tensors of one operator must be on one device (except scalars on the CPU). `Waits` counts operators
for which a GPU stops the host:

copy      a copy to the host (`.cpu()`, `.tolist()`, `float(x)`, branches on values), or a copy to
          the device without `non_blocking`
shape     an operator with a result of unknown size: `nonzero`, boolean indexing, `unique`
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "sim"
ATEN = torch.ops.aten
_FACTORIES = (
    "arange",
    "empty",
    "empty_strided",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
)
_UNKNOWN_SIZES = {
    "nonzero",
    "masked_select",
    "unique",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
}
Waits = Counter[str]
_counters: list[Waits] = []


class SimulatedTensor(Tensor):
    """A tensor of the device "sim" with the values of a CPU tensor."""

    __module__ = "torch"  # `scenes/geometry.py` finds its functions there
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "SimulatedTensor":
        """The wrapper of a CPU tensor; inference mode has no views of wrappers."""
        layout = (inner.shape, inner.stride(), inner.storage_offset())
        with torch.inference_mode(False):
            return Tensor._make_wrapper_subclass(
                cls, *layout, dtype=inner.dtype, device=f"{DEVICE}:0"
            )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.inner!r} on {DEVICE}"

    def tolist(self) -> Any:
        """PyTorch has no such method for wrappers."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors: list[Tensor] = []
        plain = _unwrap(args, tensors)
        options = {name: _unwrap(value, tensors) for name, value in kwargs.items()}
        target = torch.device(kwargs.get("device") or DEVICE).type
        _check_and_count(func, args, kwargs, tensors, target)
        result = _SUBSTITUTES.get(func, func)(*plain, **options)
        is_plain = func in (ATEN._local_scalar_dense.default, ATEN.equal.default)
        if is_plain or target == "cpu":
            return result
        if func is ATEN.copy_.default and not isinstance(args[0], cls):
            return args[0]
        return return_and_correct_aliasing(func, args, kwargs, _wrap(result))


def _wrap(value: Any) -> Any:
    """Nested results on the device."""
    if isinstance(value, tuple | list):
        return type(value)(_wrap(part) for part in value)
    if isinstance(value, Tensor):
        return SimulatedTensor(value)
    return value


def _unwrap(value: Any, tensors: list[Tensor]) -> Any:
    """Nested arguments with the CPU tensors, and with the CPU instead of the device.

    Adds the tensors to `tensors`.
    """
    if isinstance(value, tuple | list):
        return type(value)(_unwrap(part, tensors) for part in value)
    if isinstance(value, Tensor):
        tensors.append(value)
    if isinstance(value, SimulatedTensor):
        return value.inner
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def _check_and_count(func: Any, args: Any, kwargs: Any, tensors: list[Tensor], target: str) -> None:
    """Refuse tensors of two devices; count the operator if the host waits for it."""
    name = func.overloadpacket.__name__
    if func in (ATEN._to_copy.default, ATEN.copy_.default):
        waits = not (kwargs.get("non_blocking") or args[2:] == (True,))
        devices = {target, *(tensor.device.type for tensor in tensors)}
        if waits and len(devices) > 1:
            _count("copy")
        return
    for tensor in tensors:
        if not isinstance(tensor, SimulatedTensor) and tensor.ndim:
            shape = tuple(tensor.shape)
            found = f"got one of shape {shape} on the CPU"
            raise RuntimeError(f"{func}: expected all tensors on {DEVICE}, {found}")
    if name in _UNKNOWN_SIZES or _has_mask(name, args):
        _count("shape")
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        _count("shape")
    if name in ("_local_scalar_dense", "equal", "is_nonzero"):
        _count("copy")


def _has_mask(name: str, args: Any) -> bool:
    """Whether an operator is indexing with a mask."""
    if not name.startswith("index") or not isinstance(args[1], list | tuple):
        return False
    indices = [index for index in args[1] if index is not None]
    return any(index.dtype in (torch.bool, torch.uint8) for index in indices)


def _count(kind: str) -> None:
    for counter in _counters:
        counter[kind] += 1


@contextmanager
def counted() -> Iterator[Waits]:
    """Counts the waits of the host for the device inside the context."""
    _counters.append(Waits())
    try:
        yield _counters[-1]
    finally:
        _counters.pop()


def move(module: nn.Module) -> nn.Module:
    """Move a module to the device.

    By default PyTorch would divide tied parameters if the tensor type changes.
    """
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.to(DEVICE)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def _fused_lstm_cell(
    gates: Tensor, hidden: Tensor, cell: Tensor, *biases: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state, cell and workspace (the activated gates)."""
    total = gates + hidden + (sum(bias for bias in biases if bias is not None))
    i, f, g, o = total.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    after = f * cell + i * g
    return o * after.tanh(), after, torch.cat([i, f, g, o], 1)


def _fused_lstm_cell_gradient(
    d_hidden: Tensor | None,
    d_cell: Tensor | None,
    before: Tensor,
    after: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the gates, the cell and the bias."""
    i, f, g, o = workspace.chunk(4, 1)
    if d_hidden is None:
        d_hidden = torch.zeros_like(after)
    if d_cell is None:
        d_cell = torch.zeros_like(after)
    d_after = d_cell + d_hidden * o * (1 - after.tanh() ** 2)
    d_i = d_after * g * i * (1 - i)
    d_f = d_after * before * f * (1 - f)
    d_g = d_after * i * (1 - g**2)
    d_o = d_hidden * after.tanh() * o * (1 - o)
    gates = torch.cat([d_i, d_f, d_g, d_o], 1)
    return gates, d_after * f, gates.sum(0)


_SUBSTITUTES = {  # operators that PyTorch has on accelerators only
    ATEN._thnn_fused_lstm_cell.default: _fused_lstm_cell,
    ATEN._thnn_fused_lstm_cell_backward_impl.default: _fused_lstm_cell_gradient,
}


_MODULE = SimpleNamespace(  # the parts of `torch.cuda` that PyTorch needs for a device
    is_available=lambda: True,
    is_initialized=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: 0,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda seed: None,  # it uses the random numbers of the CPU
    get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
)


def _factory(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make(*args: Any, **kwargs: Any) -> Any:
        options = {name: _unwrap(value, []) for name, value in kwargs.items()}
        return _wrap(func(*args, **options))

    return make


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Called by `torch.tensor(values, device="sim")`."""
    _count("copy")
    target.inner.copy_(source)  # type: ignore[attr-defined]
    return target


_setup_privateuseone_for_python_backend(DEVICE, backend_module=_MODULE)
_library = torch.library.Library("aten", "IMPL")
for _name in _FACTORIES:
    for _overload in getattr(ATEN, _name).overloads():
        _operator = getattr(getattr(ATEN, _name), _overload)
        _full_name = f"{_name}.{_overload}".removesuffix(".default")
        if any(argument.name == "device" for argument in _operator._schema.arguments):
            _library.impl(_full_name, _factory(_operator), "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
