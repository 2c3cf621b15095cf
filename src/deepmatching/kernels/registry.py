"""The one door to the kernels: a registry of operators, and the choice between a kernel and its definition.

An operator is defined by a plain PyTorch or NumPy function, decorated with :func:`operator`. A kernel is a function of
the same name and signature in ``deepmatching.kernels.cpu`` (Numba) or ``deepmatching.kernels.gpu`` (Triton). A call
runs the kernel for the device of its arguments, or the definition where there is no such kernel, where the kernel does
not take the arguments' type, or where it has no gradient and one is needed.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, update_wrapper
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import OUT_OF_MEMORY, OutOfMemoryError, is_out_of_memory

_log = logging.getLogger("deepmatching")

P = ParamSpec("P")
T = TypeVar("T")

_OFF = os.environ.get("DEEPMATCHING_KERNELS", "on").lower() in ("0", "off", "no", "false")
_enabled = ContextVar("kernels", default=not _OFF)

#: Tells whether ``torch.export`` traces; before PyTorch 2.7, ``torch.compile`` counts, too.
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


class Operator(Generic[P, T]):
    """A definition and the kernels of its name behind it. Calling the operator runs one of them.

    ``dtypes`` are the floating-point types that the kernels take on each type of device, and ``differentiable`` says
    whether they carry gradients.
    """

    def __init__(self, definition: Callable[P, T], dtypes: dict[str, tuple[str, ...]], differentiable: bool) -> None:
        update_wrapper(self, definition)
        self.name, self.definition, self.dtypes = definition.__name__, definition, dtypes
        self.differentiable = differentiable

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.implementation(*args, **kwargs)(*args, **kwargs)

    def kernel(self, device: str) -> Callable[P, T] | None:
        """Return the kernel for a type of device, or None if there is none on this machine."""
        package = _kernels_on(device)
        return getattr(package, self.name) if package and self.name in package.__all__ else None

    def implementation(self, *args: P.args, **kwargs: P.kwargs) -> Callable[P, T]:
        """Return the kernel or the definition: whichever runs for these arguments."""
        if not _enabled.get() or is_exporting():  # ``torch.export`` sees PyTorch's operators alone
            return self.definition
        arrays = list(_arrays((*args, *kwargs.values())))
        devices = {array.device.type if isinstance(array, Tensor) else "cpu" for array in arrays}
        if len(devices) != 1:
            return self.definition
        device = devices.pop()
        types = {str(array.dtype).removeprefix("torch.") for array in arrays}
        if not {name for name in types if "float" in name}.issubset(self.dtypes.get(device, ())):
            return self.definition
        needs_gradient = torch.is_grad_enabled() and any(getattr(array, "requires_grad", False) for array in arrays)
        if needs_gradient and not self.differentiable:
            return self.definition
        return self.kernel(device) or self.definition


#: Every operator that has a kernel on some device, by name.
OPERATORS: dict[str, Operator[..., Any]] = {}


def operator(
    cpu: tuple[str, ...] = ("float32",), cuda: tuple[str, ...] = ("float32", "float16"), differentiable: bool = False
) -> Callable[[Callable[P, T]], Operator[P, T]]:
    """Register a definition as an operator, with the floating-point types that its kernels take on either device.

    On a GPU, scores may be stored in half precision. ``differentiable`` says that the kernels carry gradients.
    """

    def register(definition: Callable[P, T]) -> Operator[P, T]:
        found = Operator(definition, {"cpu": cpu, "cuda": cuda}, differentiable)
        OPERATORS[found.name] = found
        return found

    return register


@contextmanager
def plain_operators() -> Iterator[None]:
    """Run the definitions inside this block, whatever kernels there are."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)


def has_kernels(device: str) -> bool:
    """Tell whether inference runs on kernels on this type of device."""
    return _enabled.get() and _kernels_on(device) is not None


@cache
def _kernels_on(device: str) -> ModuleType | None:
    """Import the package of kernels for a type of device, when it is first needed."""
    try:
        if device == "cpu":
            from deepmatching.kernels import cpu

            return cpu
        if device == "cuda":
            from deepmatching.kernels import gpu

            return gpu
    except Exception as error:  # not installed, or broken: that may raise anything
        if is_out_of_memory(error):
            raise OutOfMemoryError(OUT_OF_MEMORY) from error
        library = {"cpu": "Numba", "cuda": "Triton"}[device]
        _log.warning("%s cannot be used on this machine (%s): matching is much slower without it", library, error)
    return None


def _arrays(values: Iterable[Any]) -> Iterator[Tensor | np.ndarray]:
    """Yield the tensors and arrays among the values and in their tuples."""
    for value in values:
        if isinstance(value, Tensor | np.ndarray):
            yield value
        elif isinstance(value, tuple):
            yield from _arrays(value)
