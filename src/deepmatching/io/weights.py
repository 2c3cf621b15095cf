"""Tensors on disk as safetensors, which cannot hold code as a pickle can."""

from collections.abc import Mapping
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, read_bytes, write_file

#: Types that we write, and those of weights from elsewhere.
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


def read_safetensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a file. Every number must be finite."""
    read_bytes(path, "file", max_bytes=1)  # raises in our words
    try:
        with safe_open(path, framework="pt") as file:
            # Copies: tensors that map the file would keep it open, and Windows does not replace open files.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except Exception as error:  # SafetensorError, OSError, TypeError for a type that PyTorch lacks, …
        raise DeepMatchingError(f"'{path}' is not a readable .safetensors file ({error}); save it again.") from error
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise DeepMatchingError(f"'{path}' holds {name} as {tensor.dtype}; save it again in float32.")
        if not torch.isfinite(tensor).all():
            raise DeepMatchingError(f"'{path}' holds NaN or infinite numbers in {name}; use another file.")
    return tensors, metadata


def check_counts(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError if the settings in a file ask for layers that it cannot have, before these are built."""
    if min(settings.get("widths", [1])) < 1:
        raise ValueError("widths must be positive")
    if settings.get("scales", 1) > len(tensors):
        raise ValueError(f"scales asks for more than the {len(tensors)} tensors of the file")
    for name in ("layers", "depths"):
        if name in settings and sum(max(0, count) for count in settings[name]) > len(tensors):
            raise ValueError(f"{name} asks for more than the {len(tensors)} tensors of the file")


def write_safetensors(path: PathLike, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata atomically."""
    # Not save_file: it would replace the temporary file by one that only its owner may read.
    write_file(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata))


class NoInitialValues(TorchFunctionMode):
    """Inside this block, networks are built without random weights, for those that get theirs from a file.

    The user's random numbers stay as they are. And where a network takes no memory (``torch.device("meta")``), PyTorch
    would import its compiler to draw random weights, which takes a second or two.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_initial = getattr(func, "__module__", None) == nn.init.__name__
        if is_initial or func in (torch.Tensor.normal_, torch.Tensor.uniform_):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
