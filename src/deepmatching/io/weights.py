"""Tensors on disk as safetensors, which cannot hold code as a pickle can."""

from __future__ import annotations

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, atomic_write


def read_safetensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file."""
    try:
        with safe_open(path, framework="pt") as file:
            # Copies: tensors that map the file would keep it open, and Windows does not replace open files.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise DeepMatchingError(
            f"'{path}' is not a readable .safetensors file ({error}); copy or save it again."
        ) from error


def write_safetensors(path: PathLike, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata atomically."""
    # Not save_file: it would replace the temporary file by one that only its owner may read.
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata)
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
