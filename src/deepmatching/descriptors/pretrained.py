"""VGG-16's published weights as the start of training."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
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

#: Images in 0 … 255 enter a network as (x − mean)/std. The authors' training, and torchvision's own.
AUTHORS = (MEAN_RGB, (1.0, 1.0, 1.0))
TORCHVISION = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))

#: By its first kernel, (3, 3) of the red channel, the training that a file comes from is known, whatever its name.
AUTHORS_KERNEL = ((0.4800, 0.4085, -0.0651), (0.3105, 0.0502, -0.4034), (-0.0509, -0.2852, -0.4185))
TORCHVISION_KERNEL = ((-0.5537, 0.1427, 0.5290), (-0.5831, 0.3566, 0.7657), (-0.6902, -0.0480, 0.4841))

#: How far each of its numbers may be off: in half precision, or trained a little further, it is still that kernel.
TOLERANCE = 0.02

#: What the readers raise for files that are cut off, or hold something else.
_UNREADABLE = (
    *(OSError, ValueError, RuntimeError, EOFError, TypeError, AttributeError, LookupError, AssertionError),
    *(SafetensorError, pickle.UnpicklingError, struct.error, zipfile.BadZipFile),
)


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

    Weights of the authors' training and of torchvision's own are told apart by their values. For others, a file may
    say in ``mean_rgb`` and ``std_rgb`` (3 numbers each, for colours in 0 … 255) what images are normalised by;
    otherwise they are taken to expect what the authors' do.

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
    _renormalise(filled, *_normalisation(tensors, filled["conv1_1.weight"], source))
    descriptor.load_state_dict(filled)


def _normalisation(tensors: dict[str, Tensor], weight: Tensor, source: object) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation, (3,) each, by which these weights expect images to be normalised."""
    known = TORCHVISION if _is_close(weight[0, 0], TORCHVISION_KERNEL) else AUTHORS
    mean = tensors.get("mean_rgb", torch.tensor(known[0])).flatten().float()
    std = tensors.get("std_rgb", torch.tensor(known[1])).flatten().float()
    if len(mean) != 3 or len(std) != 3 or not (std > 0).all():
        raise DeepMatchingError(f"The mean_rgb and std_rgb of {source} must be 3 numbers each: correct them.")
    return mean, std


def _renormalise(tensors: dict[str, Tensor], mean: Tensor, std: Tensor) -> None:
    """Weights for (x − mean)/std become weights for x − MEAN_RGB; those for BGR become weights for RGB."""
    weight = tensors["conv1_1.weight"]
    if _is_close(weight[0, 2], AUTHORS_KERNEL):  # the authors' file itself has blue first
        weight = weight.flip(1)
    tensors["conv1_1.weight"] = weight = weight / std[:, None, None]
    tensors["conv1_1.bias"] = tensors["conv1_1.bias"] + weight.sum((2, 3)) @ (torch.tensor(MEAN_RGB) - mean)


def _is_close(kernel: Tensor, known: tuple[tuple[float, ...], ...]) -> bool:
    return bool(((kernel - torch.tensor(known)).abs() <= TOLERANCE).all())


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise DeepMatchingError(f"There is no file {path} with VGG-16 weights: check the path or use 'download'.")
    if not path.stat().st_size:
        raise DeepMatchingError(f"{path} is empty: get the weights again.")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                numbers = {name: arrays[name] for name in arrays.files if arrays[name].dtype.kind in "fiu"}
                return {name: torch.from_numpy(array) for name, array in numbers.items()}
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".pth", ".pt"):
            return _unpickled_tensors(path)
    except _UNREADABLE as error:
        if isinstance(error, pickle.UnpicklingError) or "pickle" in str(error):
            # Not in the words of PyTorch and NumPy, which advise to run what the file holds.
            raise DeepMatchingError(
                f"{path} holds Python objects, not plain tensors with names, or is damaged: give a network's "
                "state_dict()."
            ) from error
        reason = str(error).splitlines()[0] if str(error) else "it is damaged"
        raise DeepMatchingError(f"{path} cannot be read as VGG-16 weights ({reason}): get it again.") from error
    raise DeepMatchingError(f"{path} is not a kind of file for weights: use .npz, .safetensors or torchvision's .pth.")


def _unpickled_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a PyTorch file, none of whose code is run; ``UnpicklingError`` if it holds something else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about protocols of pickle
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict):
        raise pickle.UnpicklingError("There are no names.")
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def _download() -> dict[str, Tensor]:
    try:
        return torch.hub.load_state_dict_from_url(URL, map_location="cpu", check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        raise DeepMatchingError(
            f"VGG-16's weights could not be downloaded from {URL} ({error}): give a local file instead."
        ) from error
