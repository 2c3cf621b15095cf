"""Models by name or file: descriptors and exponents as safetensors, never a pickle.

A model file holds the network's tensors and, as metadata, what is needed to build the network again:
``format`` ("deepmatching"), ``descriptor`` (a name from ``DESCRIPTORS``) and its ``settings`` (JSON).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from deepmatching.descriptors import HOG, Descriptor
from deepmatching.errors import DeepMatchingError
from deepmatching.files import atomic_write
from deepmatching.network import Network

#: Descriptors by name; each takes the downscale.
DESCRIPTORS: dict[str, Callable[..., Descriptor]] = {"hog": HOG}

#: Models that need no file.
NAMES = ("hog",)


def load_network(
    model: str | os.PathLike[str],
    radius: int | None = 80,
    levels: int | None = None,
    downscale: int | None = None,
) -> Network:
    """Build the network of a model.

    Args:
        model: a name (``hog``) or the path of a ``.safetensors`` file that :func:`save_network` wrote.
        radius, levels: see :class:`~deepmatching.network.Network`.
        downscale: cells are 2^downscale pixels wide; None for the model's own (1 for ``hog``).
    """
    if str(model) in NAMES:
        return Network(DESCRIPTORS[str(model)](downscale=1 if downscale is None else downscale), radius, levels)
    path = Path(model)
    if not path.is_file():
        raise DeepMatchingError(
            f"Unknown model '{model}': use {' or '.join(repr(n) for n in NAMES)} or the path of a .safetensors file."
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DeepMatchingError(f"{path} is not a readable .safetensors model ({error}): save it again.") from error
    if metadata.get("format") != "deepmatching" or metadata.get("descriptor") not in DESCRIPTORS:
        raise DeepMatchingError(f"{path} is not a deepmatching model: save one with DeepMatcher.save.")
    try:
        settings = json.loads(metadata.get("settings", "{}"))
        if downscale is not None:
            settings["downscale"] = downscale
        descriptor = DESCRIPTORS[metadata["descriptor"]](**settings)
    except (TypeError, ValueError) as error:
        raise DeepMatchingError(
            f"{path} holds settings that do not fit its descriptor ({error}): save it again."
        ) from error
    network = Network(descriptor, radius, levels)
    _load_tensors(network, tensors, path)
    return network


def _load_tensors(network: Network, tensors: dict[str, Any], path: Path) -> None:
    own = network.state_dict()
    if set(own) != set(tensors):
        odd = ", ".join(sorted(set(own) ^ set(tensors)))
        raise DeepMatchingError(
            f"{path} holds the tensors of another architecture (differing: {odd}): use one that fits this model."
        )
    exponents = tensors["exponents"]
    if exponents.ndim != 1 or len(exponents) < 1 or not (exponents > 0).all():
        raise DeepMatchingError(f"{path} holds exponents that are not positive numbers: train or save it again.")
    network.exponents.data = exponents.to(network.exponents.dtype)
    mismatched = [n for n in own if n != "exponents" and own[n].shape != tensors[n].shape]
    if mismatched:
        raise DeepMatchingError(
            f"{path} holds tensors of other shapes than expected ({', '.join(mismatched)}): "
            "use a model of this architecture."
        )
    network.load_state_dict(tensors)


def save_network(network: Network, path: str | os.PathLike[str], **metadata: str) -> None:
    """Write the network's tensors and what is needed to build it again; extra ``metadata`` is kept as it is."""
    names = {type_: name for name, type_ in DESCRIPTORS.items()}
    if type(network.descriptor) not in names:
        raise DeepMatchingError(
            f"{type(network.descriptor).__name__} has no name to be saved under: "
            "add it to deepmatching.models.DESCRIPTORS."
        )
    descriptor = names[type(network.descriptor)]
    settings = json.dumps(network.descriptor.settings())
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    with atomic_write(path) as temporary:
        save_file(
            tensors,
            temporary,
            {**metadata, "format": "deepmatching", "descriptor": descriptor, "settings": settings},
        )
