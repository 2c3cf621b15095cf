"""What is trained: the network and its loss as one module, and which of its parameters are learned."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.edges import edge_strength
from deepmatching.flow.losses import interpolation_loss
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import positions, target_indices
from deepmatching.models import build_confidence, build_network, load_network, name_of, pooling_of
from deepmatching.network.descriptors import VGG, Compact, Descriptor
from deepmatching.network.descriptors.compact import grow
from deepmatching.network.descriptors.pretrained import is_published, load_vgg
from deepmatching.network.inference import Decoding
from deepmatching.network.losses import Objective, confidence_loss
from deepmatching.network.memory import require_pyramid
from deepmatching.network.network import Network, Pyramid
from deepmatching.network.operators.decoding import Decoded, decode, mask_off_image
from deepmatching.network.operators.power import power
from deepmatching.network.operators.soft_argmax import highest_peaks, soft_argmax
from deepmatching.network.operators.subpixel import correlation_around, refine_to_subpixel, scores_around, soft_offsets
from deepmatching.settings import CROSS_ENTROPY_BETA, radius_in_pixels
from deepmatching.training.config import Amp, Config, FlowPositions, Learn, LossConfig, ModelConfig
from deepmatching.training.data import Batch

FIRST_SHARPNESS = 20.0  #: κ at the start of a network that has none and is to learn it
MIN_CONFIDENCE = 0.5  #: matches of at least this confidence are interpolated by the loss on the flow


class TrainedModel(nn.Module):
    """Images and ground truth in, loss out. One module, so that DDP sees every parameter that has a gradient.

    If ``learn`` is ``confidence``, the loss of that network is the only one. Otherwise ``objective`` is joined by the
    losses that the weights ``confidence`` and ``flow`` ask for.
    """

    def __init__(
        self,
        network: Network,
        objective: Objective,
        amp: Amp,
        learn: Learn,
        confidence: float = 0.0,
        flow: float = 0.0,
        flow_positions: FlowPositions = "peak",
    ) -> None:
        super().__init__()
        self.network, self.objective, self.amp, self.learn = network, objective, amp, learn
        self.confidence, self.flow, self.flow_positions = confidence, flow, flow_positions

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor], DeepMatchingError | None]:
        """Return the loss of a batch, the metrics to log, and the error if the batch is one or causes one.

        With several processes, all of them must go through forward and backward until they have agreed to stop. A
        process without a batch, or with a batch that the network rejects, takes part with a loss of 0.
        """
        try:
            if isinstance(batch, DeepMatchingError):
                raise batch
            return *self.loss(*batch[:4]), None
        except DeepMatchingError as error:
            parameters = (p for p in self.parameters() if p.requires_grad)
            return 0 * torch.stack([p.sum() for p in parameters]).sum(), {}, error

    def loss(self, image0: Tensor, image1: Tensor, flow: Tensor, occluded: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch and the metrics to log; see :class:`~deepmatching.network.losses.Objective`."""
        network = self.network
        with _bfloat16(network.descriptor) if self.amp == "bf16" else contextlib.nullcontext():
            geometry = network.geometry_of(image0, image1)
            if self.learn == "confidence":  # the matches do not change, and need no score volumes
                with torch.no_grad():
                    cells = network.describe(image0, image1, geometry)
                    decoded = network.decode_descriptors(*cells, geometry, Decoding(confidence=False))
                return self._confidence_loss(decoded, cells, geometry, flow, occluded)
            require_pyramid(network, geometry, len(image0), image0.device)
            pyramid = network(image0, image1)
        loss, metrics = self.objective(pyramid, flow, occluded)
        if self.flow:
            own = self._interpolated(image0, pyramid, flow)
            loss, metrics = loss + self.flow * own, {**metrics, "interpolated": own.detach()}
        if self.confidence:
            assert pyramid.cells is not None
            own, more = self._confidence_loss(self._matches(pyramid)[2], pyramid.cells, geometry, flow, occluded)
            loss, metrics = loss + self.confidence * own, {**metrics, **more, "confidence": own.detach()}
        return loss, metrics

    def _interpolated(self, image0: Tensor, pyramid: Pyramid, flow: Tensor) -> Tensor:
        """Return the error of the flow that sub-pixel matches interpolate to.

        Its gradient reaches the descriptor, ν_0 and κ through the refinement of cells that an arg-max gives, which has
        none itself. With ``flow_positions="soft"`` a match is the soft arg-max of Q_0, and with it all of the
        network gets a gradient: ν_1 … ν_L, and the descriptor through the pyramid.
        """
        assert pyramid.cells is not None
        geometry = pyramid.geometry
        with torch.no_grad():
            whole, around, refined = self._matches(pyramid)
            confidence = self.network.estimate_confidence(refined, around, *pyramid.cells, geometry)[:, 0].sigmoid()
        if self.flow_positions == "soft":
            Q_0 = mask_off_image(pyramid.Q[0], geometry, border=False)  # as for decoding
            scores, peaks = highest_peaks(Q_0)
            places = torch.stack([self._between_cells(pyramid, cells) for cells in peaks.unbind(-1)], dim=-2)
            targets = soft_argmax(scores, places, CROSS_ENTROPY_BETA)
        else:
            targets = self._between_cells(pyramid, whole.cells)
        moved = (targets - whole.points0).flatten(1, 2)
        points = whole.at_pixel_centres()[0].flatten(0, 1)
        weights = (confidence * (confidence > MIN_CONFIDENCE)).flatten(1)
        errors = [
            interpolation_loss(moved[b], points, weights[b], edge_strength(image0[b]), flow[b])
            for b in range(len(moved))
            if bool((weights[b] > 0).any())
        ]
        return torch.stack(errors).mean() if errors else 0 * moved.sum()

    def _between_cells(self, pyramid: Pyramid, targets: Tensor) -> Tensor:
        """Return the sub-pixel positions (B, H_0, W_0, 2) of these cells (B, H_0, W_0), with a gradient."""
        assert pyramid.cells is not None and pyramid.sharpness is not None
        geometry, patch = pyramid.geometry, self.network.descriptor.patch
        scores = correlation_around(*pyramid.cells, *target_indices(targets, geometry), geometry, patch)
        finite = torch.isfinite(scores)
        scores = torch.where(finite, power(torch.where(finite, scores, 0), self.network.exponents[0]), -torch.inf)
        return positions(targets, geometry)[1] + geometry.gamma * soft_offsets(scores, pyramid.sharpness).flip(-1)

    def _confidence_loss(
        self, decoded: Decoded, cells: tuple[Tensor, Tensor], geometry: Geometry, flow: Tensor, occluded: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        cells = cells[0].detach(), cells[1].detach()
        logits = self.network.estimate_confidence(decoded, self._around(decoded, cells, geometry), *cells, geometry)
        return confidence_loss(logits, decoded.points1 - decoded.points0, flow, occluded, geometry)

    @torch.no_grad()
    def _matches(self, pyramid: Pyramid) -> tuple[Decoded, Tensor, Decoded]:
        """Return the matches of score volumes on cells, the scores around them, and the refined matches."""
        assert pyramid.cells is not None
        decoded = decode(pyramid.Q[0].detach().clone(), pyramid.geometry, "bins")
        around = self._around(decoded, pyramid.cells, pyramid.geometry)
        if pyramid.sharpness is None:
            return decoded, around, decoded
        return decoded, around, refine_to_subpixel(decoded, around, pyramid.geometry, pyramid.sharpness)

    def _around(self, decoded: Decoded, cells: tuple[Tensor, Tensor], geometry: Geometry) -> Tensor:
        return scores_around(decoded, *cells, geometry, self.network.descriptor.patch, self.network.exponents[0])


@contextlib.contextmanager
def _bfloat16(descriptor: Descriptor) -> Iterator[None]:
    """Let the descriptor compute in bfloat16 and return float32.

    Only the descriptor: sums of scores along a path would lose the small differences that decide a match.
    """
    plain = descriptor.forward

    def forward(image: Tensor) -> Tensor:
        with torch.autocast(image.device.type, torch.bfloat16):
            cells = plain(image)
        return cells.float()

    descriptor.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del descriptor.forward  # uncovers the method of the class


def build_model(model: ModelConfig, loss: LossConfig, amp: Amp = "off") -> TrainedModel:
    """Build the network at the start of a run, with ``requires_grad`` set on what is learned."""
    network = _network(model)
    kappa = model.subpixel
    if kappa == "auto" and network.sharpness is None and loss.subpixel:
        kappa = FIRST_SHARPNESS
    if kappa != "auto":
        network.sharpness = nn.Parameter(torch.tensor(float(kappa))) if kappa else None
    if model.pooling != "auto":
        network.use_pooling(pooling_of(model.pooling), model.temperature)
    if model.nu0 != "auto":
        network.exponents.data[0] = model.nu0
    if model.learn == "features" and not _learns(network.descriptor):
        raise DeepMatchingError("This descriptor has no features to learn: set model.learn=exponents.")
    learns_confidence = model.learn == "confidence" or loss.confidence > 0
    if learns_confidence:
        network.confidence = network.confidence or build_confidence(network.descriptor)
    elif network.confidence is None and loss.flow:
        raise DeepMatchingError("Training on the flow needs a confidence: run `deepmatching train confidence` first.")
    if loss.flow and network.sharpness is None:
        raise DeepMatchingError("loss.flow needs a network that refines its matches: set model.subpixel=auto.")
    later = ("confidence", "flow", "flow_positions")
    objective = Objective(**{name: value for name, value in vars(loss).items() if name not in later})
    learns_exponents, learns_matches = model.learn in ("exponents", "both"), model.learn != "confidence"
    for part, is_learned in (
        (network.confidence, learns_confidence),
        (network.exponents, learns_exponents),
        (network.log_temperatures, learns_exponents),
        (network.own_pooling, learns_exponents),
        (network.sharpness, loss.subpixel > 0 and learns_matches),
    ):
        if isinstance(part, nn.Module | nn.Parameter):
            part.requires_grad_(is_learned)
    if model.learn not in ("features", "both"):  # otherwise what its author has frozen stays frozen
        network.descriptor.requires_grad_(False)
    if not learns_matches:
        objective.requires_grad_(False)
    if learns_exponents and not model.learn_nu0:  # without a gradient, no optimizer moves ν_0
        network.exponents.register_hook(lambda gradient: torch.cat([torch.zeros_like(gradient[:1]), gradient[1:]]))
    return TrainedModel(network, objective, amp, model.learn, loss.confidence, loss.flow, loss.flow_positions)


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def untrained_parts(network: Network, init: str) -> str:
    """Return a sentence about a confidence that does not learn while the matches do; empty if there is none."""
    is_kept = network.confidence is not None and not _learns(network.confidence)
    if not is_kept or not (network.exponents.requires_grad or _learns(network.descriptor)):
        return ""
    return (
        f"The confidence stays as in {init} while the matches change: train it next, with the config confidence and "
        "model.init=, or use it as it is."
    )


def check_sizes(network: Network, config: Config) -> None:
    """Raise for crops, radii, levels and score volumes that contradict one another, as far as the config tells."""
    descriptor = network.descriptor
    downscale, patch = descriptor.stride.bit_length() - 1, descriptor.cells_of_patch * descriptor.stride
    for key, value in (("model", network.radius), ("validation", radius_in_pixels(config.validation.radius))):
        try:
            Geometry.for_downscale((patch, patch), (patch, patch), downscale, value, patch=descriptor.cells_of_patch)
        except DeepMatchingError as error:
            raise DeepMatchingError(f"{key}.radius={value} cannot be used: {error}") from error
    size = config.data.crop
    if not any(size):
        return
    crop = f"data.crop={list(size)}"
    if min(size) < patch:
        raise DeepMatchingError(f"{crop} is smaller than one patch: use at least [{patch}, {patch}].")
    try:
        levels = network.geometry((size[0], size[1]), (size[0], size[1])).L
    except DeepMatchingError as error:
        raise DeepMatchingError(f"With {crop}, model.{error}") from error
    for name, weight in config.loss.weights.items():
        if weight and int(name[1:]) > levels:
            sizes = f"with {crop} and model.levels={config.model.levels} the last one is {levels}"
            raise DeepMatchingError(f"loss.weights.{name} needs a level that does not exist: {sizes}.")


def _network(model: ModelConfig) -> Network:
    """Build the network that ``model`` describes, with its first weights."""
    radius = radius_in_pixels(model.radius)
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
        raise DeepMatchingError(f"The model {model.init} has another descriptor: set model.descriptor={name}.")
    asked = build_network(name, radius, levels, **model.settings).descriptor if model.settings else network.descriptor
    if asked.settings() != network.descriptor.settings():
        if not isinstance(asked, Compact) or not isinstance(network.descriptor, Compact):
            raise DeepMatchingError(f"The model {model.init} was built with other model.settings: leave them out.")
        grow(network.descriptor, asked)
        network.descriptor = asked
    return network
