"""Models by name or file: descriptors and exponents as safetensors, never a pickle.

A model file holds the network's tensors and, as metadata, what is needed to build the network again:
``format`` ("deepmatching"), ``descriptor`` (a name from ``DESCRIPTORS``) and its ``settings`` (JSON). Whatever else the
metadata says is the model's card.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from deepmatching.descriptors import HOG, VGG, Compact, Descriptor
from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import atomic_write
from deepmatching.network import Network

#: Descriptors by name; each takes the downscale.
DESCRIPTORS: dict[str, Callable[..., Descriptor]] = {"hog": HOG, "vgg": VGG, "compact": Compact}

#: Models that come with the package: ``hog`` needs no weights, the others have a file each.
NAMES = ("compact", "vgg", "hog")


def build_network(
    descriptor: str,
    radius: int | None = 80,
    levels: int | None = None,
    sharpness: float | None = None,
    **settings: Any,
) -> Network:
    """An untrained network with this descriptor, see ``DESCRIPTORS``, and the settings of its class."""
    if descriptor not in DESCRIPTORS:
        raise DeepMatchingError(f"Unknown descriptor '{descriptor}': use {', '.join(DESCRIPTORS)}.")
    try:
        built = DESCRIPTORS[descriptor](**settings)
    except TypeError as error:
        raise DeepMatchingError(f"The {descriptor} descriptor cannot be built like this ({error}).") from error
    return Network(built, radius, levels, sharpness=sharpness)


def load_network(
    model: str | os.PathLike[str],
    radius: int | None = 80,
    levels: int | None = None,
    downscale: int | None = None,
) -> Network:
    """Build the network of a model.

    Args:
        model: a name from ``NAMES`` or the path of a ``.safetensors`` file that :func:`save_network` wrote.
        radius, levels: see :class:`~deepmatching.network.Network`.
        downscale: cells are 2^downscale pixels wide; None for the model's own (1 for those of the package).
    """
    if str(model) == "hog":
        return Network(HOG(downscale=1 if downscale is None else downscale), radius, levels)
    path = model_path(model)
    tensors, metadata = read_model(path)
    try:
        settings = json.loads(metadata.get("settings", "{}"))
        if downscale is not None:
            settings["downscale"] = downscale
        descriptor = DESCRIPTORS[metadata["descriptor"]](**settings)
    except DeepMatchingError:
        raise
    except (TypeError, ValueError) as error:
        raise DeepMatchingError(
            f"{path} holds settings that do not fit its descriptor ({error}): save it again."
        ) from error
    network = Network(descriptor, radius, levels, sharpness=1.0 if "sharpness" in tensors else None)
    load_tensors(network, tensors, path)
    return network


def model_path(model: str | os.PathLike[str]) -> Path:
    """The file of a model that is not ``hog``."""
    shipped = files("deepmatching") / "weights" / f"{model}.safetensors"
    if str(model) in NAMES and shipped.is_file():
        return Path(str(shipped))
    path = Path(model)
    if not path.is_file():
        raise DeepMatchingError(
            f"Unknown model '{model}': use {' or '.join(repr(n) for n in NAMES)} or the path of a .safetensors file."
        )
    return path


def describe_model(name: str) -> dict[str, str]:
    """A model's name and the hash of its file, since a model may be trained further under the same name."""
    if name in ("hog", "download"):  # these have no file
        return {"model": name}
    return {"model": name, "sha256": hashlib.sha256(model_path(name).read_bytes()).hexdigest()[:16]}


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a model file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies: tensors of the file itself would keep it open, and Windows does not replace open files.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DeepMatchingError(f"{path} is not a readable .safetensors model ({error}): save it again.") from error
    if metadata.get("format") == "deepmatching-training-state":
        raise DeepMatchingError(
            f"{path} is the state of a training run: use best.safetensors or last.safetensors beside it."
        )
    if metadata.get("format") != "deepmatching" or metadata.get("descriptor") not in DESCRIPTORS:
        raise DeepMatchingError(f"{path} is not a deepmatching model: save one with DeepMatcher.save.")
    return tensors, metadata


def load_tensors(network: Network, tensors: dict[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Fill a network with the tensors of a model file, or say why they do not fit."""
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


def name_of(descriptor: Descriptor) -> str:
    """The name of a descriptor's class in ``DESCRIPTORS``."""
    for name, kind in DESCRIPTORS.items():
        if type(descriptor) is kind:
            return name
    raise DeepMatchingError(
        f"{type(descriptor).__name__} has no name to be saved under: add it to deepmatching.models.DESCRIPTORS."
    )


def save_network(
    network: Network, path: str | os.PathLike[str], dtype: torch.dtype = torch.float32, **metadata: str
) -> None:
    """Write the network's tensors and what is needed to build it again; extra ``metadata`` is kept as it is.

    ``dtype`` is that of the descriptor's tensors in the file; float16 halves it, and the network is float32 again when
    it is loaded.
    """
    descriptor = name_of(network.descriptor)
    settings = json.dumps(network.descriptor.settings())
    tensors = {
        name: tensor.detach().cpu().to(dtype if tensor.ndim > 1 else torch.float32).contiguous()
        for name, tensor in network.state_dict().items()
    }
    with atomic_write(path) as temporary:
        # Not save_file: it replaces the temporary file by one that only its owner may read.
        card = {**metadata, "format": "deepmatching", "descriptor": descriptor, "settings": settings}
        temporary.write_bytes(save(tensors, card))
