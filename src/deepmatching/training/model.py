"""What is trained: the network with its loss, as one module, and which of its parameters move."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deepmatching.datasets import Pair
from deepmatching.descriptors import VGG, Descriptor
from deepmatching.descriptors.pretrained import is_published, load_vgg
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry import Geometry
from deepmatching.losses import Objective
from deepmatching.models import build_network, load_network, name_of
from deepmatching.network import Network
from deepmatching.training.config import Amp, Config, LossConfig, ModelConfig

_PRECISION: dict[Amp, torch.dtype | None] = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}

#: κ at the start of a network that has none and is to learn it.
FIRST_SHARPNESS = 20.0


class TrainedModel(nn.Module):
    """Images and truth in, loss out. One module, so that DDP sees every parameter that has a gradient.

    Args:
        network, objective: what is trained, and what on.
        amp: precision inside the descriptor.
    """

    def __init__(self, network: Network, objective: Objective, amp: Amp = "off") -> None:
        super().__init__()
        self.network = network
        self.objective = objective
        self.precision = _PRECISION[amp]

    def forward(
        self, image0: Tensor, image1: Tensor, flow: Tensor, occluded: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch of pairs and the figures to log; see :class:`~deepmatching.losses.Objective`."""
        with mixed_precision(self.network.descriptor, self.precision):
            pyramid = self.network(image0, image1)
        return self.objective(pyramid, flow, occluded)


class Attempt(nn.Module):
    """The model on a batch, or what comes of it where that fails.

    In several processes all must go through forward and backward until they have agreed to stop: one that has no
    batch, or whose batch does not suit the network, goes with a loss of 0.
    """

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Pair | DeepMatchingError) -> tuple[Tensor, dict[str, Tensor], DeepMatchingError | None]:
        """Loss and figures of the batch, and the error if it is one or leads to one."""
        try:
            if isinstance(batch, DeepMatchingError):
                raise batch
            return *self.model(*batch[:4]), None
        except DeepMatchingError as error:
            parameters = (p for p in self.model.parameters() if p.requires_grad)
            return 0 * torch.stack([p.sum() for p in parameters]).sum(), {}, error


@contextlib.contextmanager
def mixed_precision(descriptor: Descriptor, precision: torch.dtype | None) -> Iterator[None]:
    """Let the descriptor compute in a lower precision and hand on float32.

    Only the descriptor: sums of scores along a path would lose the small differences that decide a match.
    """
    if precision is None:
        yield
        return
    plain = descriptor.forward

    def mixed(image: Tensor) -> Tensor:
        with torch.autocast(image.device.type, precision):
            cells = plain(image)
        return cells.float()

    descriptor.forward = mixed  # type: ignore[method-assign]
    try:
        yield
    finally:
        del descriptor.forward  # the class's own is back


def build_model(model: ModelConfig, loss: LossConfig, amp: Amp = "off") -> TrainedModel:
    """The network as training finds it, with ``requires_grad`` on what is to be learned."""
    network = _network(model)
    _set_sharpness(network, model, loss)
    objective = Objective(loss.kind, loss.weights, loss.sigma, loss.margin, loss.scale, loss.subpixel, loss.occluded)
    has_features = any(True for _ in network.descriptor.parameters())
    if model.learn == "features" and not has_features:
        raise DeepMatchingError(
            "This descriptor has no features to learn: set model.learn=exponents, or model.descriptor=compact."
        )
    network.descriptor.requires_grad_(model.learn != "exponents")
    network.exponents.requires_grad_(model.learn != "features")
    if network.sharpness is not None:
        network.sharpness.requires_grad_(loss.subpixel > 0)
    return TrainedModel(network, objective, amp)


def check_sizes(network: Network, config: Config) -> None:
    """Raise for crops, radii, levels and score volumes that cannot go together, as far as that can be known."""
    radius = None if config.validation.radius == "full" else config.validation.radius
    cells = network.descriptor.stride.bit_length() - 1
    patch = 4 * network.descriptor.stride
    for key, value in (("model", network.radius), ("validation", radius)):
        try:
            Geometry.for_downscale((patch, patch), (patch, patch), cells, value)
        except DeepMatchingError as error:
            raise DeepMatchingError(f"{key}.radius={value} cannot be used: {error}") from error
    rows, columns = config.data.crop
    if not rows:
        return
    crop = f"data.crop=[{rows}, {columns}]"
    if min(rows, columns) < patch:
        raise DeepMatchingError(f"{crop} is smaller than one patch: use at least [{patch}, {patch}].")
    try:
        levels = network.geometry((rows, columns), (rows, columns)).L
    except DeepMatchingError as error:
        raise DeepMatchingError(f"With {crop}, model.{error}") from error
    for name, weight in config.loss.weights.items():
        if weight and int(name[1:]) > levels:
            raise DeepMatchingError(
                f"loss.weights.{name} asks for a level that is not there: with {crop} and "
                f"model.levels={config.model.levels} the last one is {levels}."
            )


def _network(model: ModelConfig) -> Network:
    radius = None if model.radius == "full" else model.radius
    levels = None if model.levels == "auto" else model.levels
    if not model.init or is_published(model.init):
        network = build_network(model.descriptor or "vgg", radius, levels, **model.settings)
        if model.init:
            if not isinstance(network.descriptor, VGG):
                raise DeepMatchingError(f"{model.init} holds weights of VGG-16: set model.descriptor=vgg.")
            load_vgg(network.descriptor, model.init)
        return network
    network = load_network(model.init, radius, levels)
    name = name_of(network.descriptor)
    if model.descriptor not in ("", name):
        raise DeepMatchingError(
            f"The model {model.init} has another descriptor than model.descriptor={model.descriptor}: "
            f"set model.descriptor={name}."
        )
    if model.settings:
        asked = build_network(name, radius, levels, **model.settings).descriptor
        if asked.settings() != network.descriptor.settings():
            raise DeepMatchingError(
                f"The descriptor of the model {model.init} was built with other model.settings: leave them out."
            )
    return network


def _set_sharpness(network: Network, model: ModelConfig, loss: LossConfig) -> None:
    """Give the network the κ that is asked for, or none; see ``ModelConfig.subpixel``."""
    kappa = model.subpixel
    if kappa == "auto":
        if network.sharpness is not None or not loss.subpixel:
            return
        kappa = FIRST_SHARPNESS
    network.sharpness = nn.Parameter(torch.tensor(float(kappa))) if kappa else None
