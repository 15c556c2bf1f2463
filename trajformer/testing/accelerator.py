"""A simulated accelerator, the device "sim", for machines without one.

It finds tensors on the wrong device and counts the operators for which the host waits for a GPU.
A tensor of the device is a wrapper around a CPU tensor, and each operator computes on the CPU. As
with a GPU, the tensors of one operator must be on one device (except scalars on the CPU). An
operator that is missing raises SkipTest. `Waits` counts

copy      copies to the host (`.cpu()`, `.tolist()`, `float(x)`, branches on values), and copies to
          the device without `non_blocking`
shape     operators with a result of unknown size: `nonzero`, boolean indices, `unique`

Importing this module registers the device with PyTorch, which allows one such device per process.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import SkipTest
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "sim"
_ATEN = torch.ops.aten

# Operators that make tensors.
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

# Operators for which the host waits.
_COPIES = (_ATEN._to_copy.default, _ATEN.copy_.default)
_READS = ("_local_scalar_dense", "equal", "is_nonzero")
_UNKNOWN_SIZES = (
    "nonzero",
    "masked_select",
    "unique",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
)

Waits = Counter[str]
Module = TypeVar("Module", bound=nn.Module)
_counters: list[Waits] = []


class SimulatedTensor(Tensor):
    """A tensor of the device "sim" with the values of a CPU tensor."""

    __module__ = "torch"  # `scenes/geometry.py` finds its functions there
    cpu_tensor: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "SimulatedTensor":
        """The wrapper of a CPU tensor; PyTorch makes no views of wrappers in inference mode."""
        with torch.inference_mode(False):
            return Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                inner.stride(),
                inner.storage_offset(),
                dtype=inner.dtype,
                device=torch.device(f"{DEVICE}:0"),
            )

    def __init__(self, inner: Tensor) -> None:
        self.cpu_tensor = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.cpu_tensor!r} on {DEVICE}"

    def tolist(self) -> Any:
        """PyTorch has no such method for wrappers."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator on the CPU (SkipTest: the CPU has no such operator)."""
        kwargs = kwargs or {}
        tensors: list[Tensor] = []
        cpu_args = _unwrap(args, tensors)
        cpu_kwargs = {name: _unwrap(value, tensors) for name, value in kwargs.items()}
        target = torch.device(kwargs.get("device") or DEVICE).type
        if func in _COPIES:
            _count_copy(args, kwargs, tensors, target)
        else:
            _check_devices(func, tensors)
            _count_waits(func, args, kwargs)

        try:
            result = _SUBSTITUTES.get(func, func)(*cpu_args, **cpu_kwargs)
        except NotImplementedError as error:
            raise SkipTest(f"the simulated accelerator has no operator {func}") from error
        if target == "cpu" or not _holds_tensor(result):
            return result
        if func is _ATEN.copy_.default and not isinstance(args[0], cls):
            return args[0]
        return return_and_correct_aliasing(func, args, kwargs, _wrap(result))


def _holds_tensor(value: Any) -> bool:
    """Whether a result, maybe a tuple, contains a tensor, and not only numbers."""
    if isinstance(value, tuple | list):
        return any(_holds_tensor(part) for part in value)
    return isinstance(value, Tensor)


def _wrap(value: Any) -> Any:
    """Nested results on the device."""
    if isinstance(value, tuple | list):
        return type(value)(_wrap(part) for part in value)
    if isinstance(value, Tensor):
        return SimulatedTensor(value)
    return value


def _unwrap(value: Any, tensors: list[Tensor]) -> Any:
    """Nested arguments with CPU tensors, and the CPU as the device; tensors join `tensors`."""
    if isinstance(value, tuple | list):
        return type(value)(_unwrap(part, tensors) for part in value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, Tensor):
        tensors.append(value)
    if isinstance(value, SimulatedTensor):
        return value.cpu_tensor
    return value


def _check_devices(func: Any, tensors: list[Tensor]) -> None:
    """Raise a RuntimeError if a tensor, except for scalars, is not on the device."""
    for tensor in tensors:
        if not isinstance(tensor, SimulatedTensor) and tensor.ndim:
            shape = tuple(tensor.shape)
            raise RuntimeError(
                f"{func}: expected all tensors on {DEVICE}, got one of shape {shape} on the CPU"
            )


def _count_copy(args: Any, kwargs: Any, tensors: list[Tensor], target: str) -> None:
    """Count a copy between two devices, except if it is `non_blocking`."""
    non_blocking = kwargs.get("non_blocking") or args[2:] == (True,)
    devices = {target}
    for tensor in tensors:
        devices.add(tensor.device.type)
    if len(devices) > 1 and not non_blocking:
        _count("copy")


def _count_waits(func: Any, args: Any, kwargs: Any) -> None:
    """Count an operator for which the host waits."""
    name = func.overloadpacket.__name__
    if name in _READS:
        _count("copy")
    if name == "repeat_interleave":
        unknown_size = kwargs.get("output_size") is None
    elif name.startswith("index") and isinstance(args[1], list | tuple):
        dtypes = [index.dtype for index in args[1] if index is not None]
        unknown_size = torch.bool in dtypes or torch.uint8 in dtypes
    else:
        unknown_size = name in _UNKNOWN_SIZES
    if unknown_size:
        _count("shape")


def _count(kind: str) -> None:
    for counter in _counters:
        counter[kind] += 1


@contextmanager
def counted() -> Iterator[Waits]:
    """Counts the waits of the host for the device inside the context."""
    waits = Waits()
    _counters.append(waits)
    try:
        yield waits
    finally:
        _counters.pop()


def move(module: Module) -> Module:
    """Move a module to the device; tied parameters stay tied.

    By default PyTorch would divide them, because the type of the tensors changes.
    """
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.to(DEVICE)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@contextmanager
def cpu_generators() -> Iterator[None]:
    """Generators of the device are CPU generators; PyTorch has none for devices in Python."""
    make = torch.Generator
    with patch("torch.Generator", lambda device="cpu": make()):
        yield


# ---- recurrent cells, which PyTorch computes with fused operators on accelerators only ---------


def _lstm_cell(
    gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state, cell and workspace (the activated gates) of an LSTM."""
    total = gates + hidden_gates
    if bias is not None and hidden_bias is not None:
        total = total + bias + hidden_bias
    i, f, g, o = total.chunk(4, 1)
    i = i.sigmoid()
    f = f.sigmoid()
    g = g.tanh()
    o = o.sigmoid()
    after = f * cell + i * g
    return o * after.tanh(), after, torch.cat([i, f, g, o], 1)


def _lstm_cell_gradient(
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
    d_after = d_hidden * o * (1 - after.tanh() ** 2)
    if d_cell is not None:
        d_after = d_cell + d_after
    d_i = d_after * g * i * (1 - i)
    d_f = d_after * before * f * (1 - f)
    d_g = d_after * i * (1 - g**2)
    d_o = d_hidden * after.tanh() * o * (1 - o)
    gates = torch.cat([d_i, d_f, d_g, d_o], 1)
    return gates, d_after * f, gates.sum(0)


def _gru_cell(
    gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Hidden state and workspace (activated gates, hidden state and its new gate) of a GRU."""
    if bias is not None and hidden_bias is not None:
        gates = gates + bias
        hidden_gates = hidden_gates + hidden_bias
    reset, update, new = gates.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden_gates.chunk(3, 1)
    reset = (reset + hidden_reset).sigmoid()
    update = (update + hidden_update).sigmoid()
    new = (new + reset * hidden_new).tanh()
    after = (1 - update) * new + update * hidden
    return after, torch.cat([reset, update, new, hidden, hidden_new], 1)


def _gru_cell_gradient(
    d_after: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of the gates, the hidden gates, the hidden state and both biases."""
    reset, update, new, hidden, hidden_new = workspace.chunk(5, 1)
    d_new = d_after * (1 - update) * (1 - new**2)
    d_update = d_after * (hidden - new) * update * (1 - update)
    d_reset = d_new * hidden_new * reset * (1 - reset)
    gates = torch.cat([d_reset, d_update, d_new], 1)
    hidden_gates = torch.cat([d_reset, d_update, d_new * reset], 1)
    if not has_bias:
        return gates, hidden_gates, d_after * update, None, None
    return gates, hidden_gates, d_after * update, gates.sum(0), hidden_gates.sum(0)


_SUBSTITUTES = {
    _ATEN._thnn_fused_lstm_cell.default: _lstm_cell,
    _ATEN._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_gradient,
    _ATEN._thnn_fused_gru_cell.default: _gru_cell,
    _ATEN._thnn_fused_gru_cell_backward.default: _gru_cell_gradient,
}


# ---- registration ------------------------------------------------------------------------------


def _factory(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator that makes a tensor on the device."""

    def make(*args: Any, **kwargs: Any) -> Any:
        cpu_kwargs = {name: _unwrap(value, []) for name, value in kwargs.items()}
        return _wrap(func(*args, **cpu_kwargs))

    return make


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Called by `torch.tensor(values, device="sim")`."""
    _count("copy")
    target.cpu_tensor.copy_(source)  # type: ignore[attr-defined]
    return target


# The parts of `torch.cuda` that PyTorch needs for a device.
_MODULE = SimpleNamespace(
    is_available=lambda: True,
    is_initialized=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: 0,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda seed: None,  # it uses the random numbers of the CPU
    get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
)

_setup_privateuseone_for_python_backend(DEVICE, backend_module=_MODULE)
_library = torch.library.Library("aten", "IMPL")
for _name in _FACTORIES:
    for _overload in getattr(_ATEN, _name).overloads():
        _operator = getattr(getattr(_ATEN, _name), _overload)
        if any(argument.name == "device" for argument in _operator._schema.arguments):
            _full_name = _name
            if _overload != "default":
                _full_name = f"{_name}.{_overload}"
            _library.impl(_full_name, _factory(_operator), "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
