"""VGG-16's published weights, with which training can start."""

import os
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import open_npz
from deepmatching.io.files import PathLike
from deepmatching.io.weights import read_safetensors
from deepmatching.network.descriptors.vgg import MEAN_RGB, VGG

#: The authors' own weights, published by PyTorch. The name ends with the first digits of the file's SHA-256.
URL = "https://download.pytorch.org/models/vgg16_features-amdegroot-88682ab5.pth"
#: Our layers and their indices in torchvision's ``vgg16().features``.
LAYERS = {"conv1_1": 0, "conv1_2": 2, "conv2_1": 5, "conv2_2": 7}
#: Images x in 0 … 255 enter a network as (x − mean)/std: with these values for the authors' and for torchvision's own
#: training.
AUTHORS = (MEAN_RGB, (1.0, 1.0, 1.0))
TORCHVISION = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
#: The first kernel, (3, 3) of the red channel, tells which training a file comes from, whatever its name.
AUTHORS_KERNEL = ((0.4800, 0.4085, -0.0651), (0.3105, 0.0502, -0.4034), (-0.0509, -0.2852, -0.4185))
TORCHVISION_KERNEL = ((-0.5537, 0.1427, 0.5290), (-0.5831, 0.3566, 0.7657), (-0.6902, -0.0480, 0.4841))
TOLERANCE = 0.02  #: in comparing kernels: half precision and a little further training are allowed


def is_published(source: PathLike) -> bool:
    """Return whether :func:`load_vgg` reads this source: ``"download"``, or a file of weights other than our models."""
    path = Path(source)
    if path.suffix != ".safetensors":
        return str(source) == "download" or path.suffix in (".npz", ".pth", ".pt")
    try:
        with safe_open(path, framework="pt") as file:
            return any(f"{prefix}.weight" in file.keys() for prefix in ("conv1_1", "features.0", "0"))  # noqa: SIM118
    except (SafetensorError, OSError):
        return False


def load_vgg(descriptor: VGG, source: PathLike = "download") -> None:
    """Fill the descriptor with the first four convolutions of a published VGG-16.

    Weights of the authors' training and of torchvision's own are told apart by their values. A file with other weights
    may state the normalisation of images in ``mean_rgb`` and ``std_rgb`` (3 numbers each, for colours in 0 … 255);
    the default is the authors' normalisation.

    Args:
        source: ``"download"`` (once, into PyTorch's cache, verified by checksum) or a file, ``.npz`` or
            ``.safetensors``, with ``conv1_1.weight`` … or torchvision's names, ``features.0.weight`` ….
    """
    tensors = _download() if str(source) == "download" else _read(Path(source))
    filled = {}
    for layer in LAYERS:
        for kind in ("weight", "bias"):
            found = next((tensors[name] for name in _names(layer, kind) if name in tensors), None)
            expected = getattr(getattr(descriptor, layer), kind).shape
            if found is None or found.shape != expected:
                what = "has no" if found is None else f"has a tensor of shape {tuple(found.shape)} instead of the"
                missing = f"{layer}.{kind} of VGG-16, {tuple(expected)}"
                raise DeepMatchingError(f"{source} {what} {missing}; give weights of that network.")
            if not torch.isfinite(found).all():
                raise DeepMatchingError(f"{source} holds NaN or infinite numbers in {layer}.{kind}; use another file.")
            filled[f"{layer}.{kind}"] = found.float()
    weight = filled["conv1_1.weight"]
    known = TORCHVISION if _is_close(weight[0, 0], TORCHVISION_KERNEL) else AUTHORS
    named = zip(("mean_rgb", "std_rgb"), known, strict=True)
    mean, std = (tensors.get(name, torch.tensor(numbers)).flatten().float() for name, numbers in named)
    if len(mean) != 3 or len(std) != 3 or not (std > 0).all():
        what = f"mean_rgb and std_rgb of {source}"
        raise DeepMatchingError(f"The {what} must be 3 numbers each, std_rgb positive; correct them.")
    if _is_close(weight[0, 2], AUTHORS_KERNEL):  # the authors' own file is in BGR order
        weight = weight.flip(1)
    # From weights for (x − mean)/std to weights for x − MEAN_RGB.
    filled["conv1_1.weight"] = weight = weight / std[:, None, None]
    filled["conv1_1.bias"] = filled["conv1_1.bias"] + weight.sum((2, 3)) @ (torch.tensor(MEAN_RGB) - mean)
    descriptor.load_state_dict(filled)


def _names(layer: str, kind: str) -> tuple[str, str, str]:
    """Return the names that files give to the weight or the bias of a layer."""
    return f"{layer}.{kind}", f"features.{LAYERS[layer]}.{kind}", f"{LAYERS[layer]}.{kind}"


def _is_close(kernel: Tensor, known: tuple[tuple[float, ...], ...]) -> bool:
    return bool(((kernel - torch.tensor(known)).abs() <= TOLERANCE).all())


def _read(path: Path) -> dict[str, Tensor]:
    if not os.path.isfile(path):
        raise DeepMatchingError(f"There is no file {path} with VGG-16 weights; check the path or use 'download'.")
    if not os.path.getsize(path):
        raise DeepMatchingError(f"{path} is empty; download the weights again.")
    if path.suffix == ".npz":
        archive = open_npz(path, "file of VGG-16 weights")
        known = [name for layer in LAYERS for kind in ("weight", "bias") for name in _names(layer, kind)]
        wanted = (name for name in (*known, "mean_rgb", "std_rgb") if name in archive)
        return {name: torch.from_numpy(archive[name].astype(np.float32)) for name in wanted}
    if path.suffix == ".safetensors":
        return read_safetensors(path)[0]
    if path.suffix in (".pth", ".pt"):
        arguments = f"torch.load({path.name!r}, weights_only=True), {path.stem + '.safetensors'!r}"
        raise DeepMatchingError(
            f"{path} may be a pickle, which can run code, so it is not read; if you trust it, convert it: "
            f"safetensors.torch.save_file({arguments})."
        )
    raise DeepMatchingError(f"{path} is not a supported file of weights; use .npz or .safetensors.")


def _download() -> dict[str, Tensor]:
    try:
        return torch.hub.load_state_dict_from_url(URL, map_location="cpu", check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        raise DeepMatchingError(
            f"VGG-16's weights could not be downloaded from {URL} ({error}); give a local file instead "
            "(model.init=FILE in training, --checkpoint ROW=FILE in reproduce)."
        ) from error
