"""Edge networks as files: safetensors in half precision, with the architecture as metadata."""

from __future__ import annotations

import functools
import json
import os
from importlib import resources
from pathlib import Path

import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.edges.edge_network import EdgeNetwork
from deepmatching.io.files import PathLike
from deepmatching.io.structured import parse_json
from deepmatching.io.weights import NoInitialValues, check_counts, read_safetensors, write_safetensors

_FORMAT = "deepmatching-edges"
_SHIPPED = "weights/edges.safetensors"


def save_edge_network(network: EdgeNetwork, path: PathLike, **metadata: str) -> None:
    """Write a folded network (see :meth:`EdgeNetwork.folded`) in half precision, with extra ``metadata``.

    Half precision changes a probability by less than 0.01 and halves the file.
    """
    tensors = {name: tensor.to(torch.float16) for name, tensor in network.state_dict().items()}
    settings = json.dumps({"widths": network.widths, "depths": network.depths})
    write_safetensors(path, tensors, {**metadata, "format": _FORMAT, "settings": settings})


def load_edge_network(path: PathLike | None = None, device: str = "cpu") -> EdgeNetwork:
    """The network of a file, or the one that ships with the package: float32, in evaluation mode.

    The shipped network is loaded once per device and shared.
    """
    if path is None:
        return _shipped(device)
    path = Path(path)
    if not os.path.isfile(path):
        raise DeepMatchingError(f"There is no edge model '{path}'; check the path.")
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") != _FORMAT:
        raise DeepMatchingError(f"'{path}' is not an edge model of deepmatching; train one with edge_network.training.")
    try:
        settings = parse_json(metadata["settings"])
        check_counts(settings, tensors)
        with NoInitialValues():
            with torch.device("meta"):  # takes no memory, whatever the sizes in the file
                shapes = {name: tensor.shape for name, tensor in EdgeNetwork(**settings).state_dict().items()}
            if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
                raise ValueError("other shapes")
            network = EdgeNetwork(**settings)
        network.load_state_dict(tensors)
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, OverflowError) as error:
        raise DeepMatchingError(
            f"'{path}' holds the tensors of another architecture; train or copy it again."
        ) from error
    return network.eval().requires_grad_(False).to(device)


@functools.lru_cache(maxsize=4)
def _shipped(device: str) -> EdgeNetwork:
    with resources.as_file(resources.files("deepmatching") / _SHIPPED) as path:
        return load_edge_network(path, device)
