"""VGG-16's published weights as the start of training."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from deepmatching.descriptors.vgg import MEAN_RGB, VGG
from deepmatching.errors import DeepMatchingError

#: The authors' own weights, as PyTorch publishes them; the name ends with the first digits of the file's SHA-256.
URL = "https://download.pytorch.org/models/vgg16_features-amdegroot-88682ab5.pth"

#: Our layers and their numbers in torchvision's ``vgg16().features``.
LAYERS = {"conv1_1": 0, "conv1_2": 2, "conv2_1": 5, "conv2_2": 7}

#: What torchvision's own training (not the authors') normalises images by, in [0, 1].
TORCHVISION_MEAN, TORCHVISION_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def is_published(source: str | os.PathLike[str]) -> bool:
    """Whether :func:`load_vgg` is to read this: ``"download"``, or a file of weights that is no model of ours."""
    path = Path(source)
    if path.suffix != ".safetensors":
        return str(source) == "download" or path.suffix in (".npz", ".pth", ".pt")
    try:
        with safe_open(path, framework="pt") as file:
            return any(f"{prefix}.weight" in file.keys() for prefix in ("conv1_1", "features.0", "0"))  # noqa: SIM118
    except (SafetensorError, OSError):
        return False


def load_vgg(descriptor: VGG, source: str | os.PathLike[str] = "download") -> None:
    """Fill the descriptor with the first four convolutions of a published VGG-16.

    Args:
        source: ``"download"`` (once, into PyTorch's cache, checked by its checksum) or a file: ``.npz`` or
            ``.safetensors`` with ``conv1_1.weight`` …, or torchvision's ``.pth`` with ``features.0.weight`` ….
    """
    tensors = _download() if str(source) == "download" else _read(Path(source))
    filled = {}
    for layer, number in LAYERS.items():
        for kind in ("weight", "bias"):
            names = (f"{layer}.{kind}", f"features.{number}.{kind}", f"{number}.{kind}")
            found = next((tensors[name] for name in names if name in tensors), None)
            expected = getattr(getattr(descriptor, layer), kind).shape
            if found is None or found.shape != expected:
                what = "has no" if found is None else f"has a tensor of shape {tuple(found.shape)} instead of the"
                raise DeepMatchingError(
                    f"{source} {what} {layer}.{kind} of VGG-16, {tuple(expected)}: give weights of that network."
                )
            filled[f"{layer}.{kind}"] = found.float()
    if "397923af" in Path(source).name:
        _undo_torchvision(filled)
    descriptor.load_state_dict(filled)


def _undo_torchvision(tensors: dict[str, Tensor]) -> None:
    """Weights for (x/255 − mean)/std become weights for x − MEAN_RGB."""
    mean, std = (torch.tensor(values) for values in (TORCHVISION_MEAN, TORCHVISION_STD))
    weight = tensors["conv1_1.weight"] / (255 * std)[:, None, None]
    tensors["conv1_1.weight"] = weight
    tensors["conv1_1.bias"] = tensors["conv1_1.bias"] + weight.sum((2, 3)) @ (torch.tensor(MEAN_RGB) - 255 * mean)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise DeepMatchingError(f"There is no file {path} with VGG-16 weights: check the path or use 'download'.")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".pth", ".pt"):
            tensors = torch.load(path, map_location="cpu", weights_only=True)
            return {name: t for name, t in tensors.items() if isinstance(t, Tensor)}
    except (OSError, ValueError, RuntimeError, SafetensorError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DeepMatchingError(f"{path} cannot be read as VGG-16 weights ({reason}): get it again.") from error
    raise DeepMatchingError(f"{path} is not a kind of file for weights: use .npz, .safetensors or torchvision's .pth.")


def _download() -> dict[str, Tensor]:
    try:
        return torch.hub.load_state_dict_from_url(URL, map_location="cpu", check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        raise DeepMatchingError(
            f"VGG-16's weights could not be downloaded from {URL} ({error}): give a local file instead."
        ) from error
