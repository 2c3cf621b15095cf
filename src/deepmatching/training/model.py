"""What is trained: the network and its loss as one module, and which of its parameters are learned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.correction.stage import InitialFlows
from deepmatching.flow.edges import edge_strength
from deepmatching.flow.losses import dense_loss, interpolation_loss
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import target_indices
from deepmatching.models import build_confidence, build_dense, build_network, load_network, name_of, pooling_of
from deepmatching.network.descriptors import VGG, Compact, Descriptor
from deepmatching.network.descriptors.compact import grow
from deepmatching.network.descriptors.pretrained import is_published, load_vgg
from deepmatching.network.inference import Decoding
from deepmatching.network.losses import Objective, confidence_loss
from deepmatching.network.memory import require_pyramid
from deepmatching.network.network import Network, Pyramid
from deepmatching.network.operators.decoding import Decoded, decode
from deepmatching.network.operators.power import power
from deepmatching.network.operators.subpixel import correlation_around, refine_to_subpixel, scores_around, soft_offsets
from deepmatching.settings import radius_in_pixels
from deepmatching.training.config import Amp, Config, LossConfig, ModelConfig
from deepmatching.training.data import Batch

#: κ at the start of a network that has none and is to learn it.
FIRST_SHARPNESS = 20.0

#: Matches of at least this confidence are interpolated by the loss on the flow.
MIN_CONFIDENCE = 0.5


class TrainedModel(nn.Module):
    """Images and ground truth in, loss out. One module, so that DDP sees every parameter that has a gradient.

    Args:
        network, objective: the network and the loss that it is trained on.
        amp: precision inside the descriptor.
        confidence: weight of the confidence network's loss; None if that is the only loss.
        flow: weight of the error of the flow that the matches interpolate to.
        is_dense: whether the dense network's loss is the only one.
    """

    def __init__(
        self,
        network: Network,
        objective: Objective,
        amp: Amp = "off",
        confidence: float | None = 0.0,
        flow: float = 0.0,
        is_dense: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.objective, self.amp = network, objective, amp
        self.confidence, self.flow, self.is_dense = confidence, flow, is_dense
        self._interpolator = InitialFlows()

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
        with _bfloat16(self.network.descriptor) if self.amp == "bf16" else contextlib.nullcontext():
            if self.is_dense:
                assert self.network.dense is not None
                matches = self._fixed_matches(image0, image1)
                with torch.no_grad():
                    start = self._interpolator(matches[0], image0, image1)
                return dense_loss(self.network.dense(image0, *matches, start), flow)
            if self.confidence is None:
                matches = self._fixed_matches(image0, image1, Decoding(confidence=False))
                return self._confidence_loss(*matches, flow, occluded)
            require_pyramid(self.network, self.network.geometry_of(image0, image1), len(image0), image0.device)
            pyramid = self.network(image0, image1)
        loss, metrics = self.objective(pyramid, flow, occluded)
        if self.flow:
            own = self._interpolated(image0, pyramid, flow)
            loss, metrics = loss + self.flow * own, {**metrics, "interpolated": own.detach()}
        if self.confidence:
            assert pyramid.cells is not None
            matches = self._matches(pyramid), pyramid.cells[0], pyramid.cells[1], pyramid.geometry
            own, more = self._confidence_loss(*matches, flow, occluded)
            loss, metrics = loss + self.confidence * own, {**metrics, **more, "confidence": own.detach()}
        return loss, metrics

    @torch.no_grad()
    def _fixed_matches(
        self, image0: Tensor, image1: Tensor, decoding: Decoding | None = None
    ) -> tuple[Decoded, Tensor, Tensor, Geometry]:
        """Return matches that the loss does not change, without score volumes; the descriptors; the geometry."""
        geometry = self.network.geometry_of(image0, image1)
        cells0, cells1 = self.network.describe(image0, image1, geometry)
        return (
            self.network.decode_descriptors(cells0, cells1, geometry, decoding or Decoding()),
            cells0,
            cells1,
            geometry,
        )

    def _interpolated(self, image0: Tensor, pyramid: Pyramid, flow: Tensor) -> Tensor:
        """Return the error of the flow that sub-pixel matches interpolate to, with a gradient to the descriptor."""
        assert pyramid.cells is not None and pyramid.sharpness is not None
        network, geometry, cells = self.network, pyramid.geometry, pyramid.cells
        with torch.no_grad():
            whole = decode(pyramid.Q[0].detach().clone(), geometry, "bins")  # on cells
            around = self._around(whole, *cells, geometry)
            refined = refine_to_subpixel(whole, around, geometry, pyramid.sharpness)
            confidence = network.estimate_confidence(refined, around, cells[0], cells[1], geometry)[:, 0].sigmoid()
        rows, columns = target_indices(whole.cells, geometry)
        scores = correlation_around(*cells, rows, columns, geometry, network.descriptor.patch)
        finite = torch.isfinite(scores)
        scores = torch.where(finite, power(torch.where(finite, scores, 0), network.exponents[0]), -torch.inf)
        offsets = geometry.gamma * soft_offsets(scores, pyramid.sharpness).flip(-1)
        moved = (whole.points1 - whole.points0 + offsets).flatten(1, 2)
        points = (whole.points0 - 0.5).flatten(0, 1)
        weights = (confidence * (confidence > MIN_CONFIDENCE)).flatten(1)
        errors = [
            interpolation_loss(moved[b], points, weights[b], edge_strength(image0[b]), flow[b])
            for b in range(len(moved))
            if bool((weights[b] > 0).any())
        ]
        return torch.stack(errors).mean() if errors else 0 * moved.sum()

    def _confidence_loss(
        self, decoded: Decoded, cells0: Tensor, cells1: Tensor, geometry: Geometry, flow: Tensor, occluded: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        cells0, cells1 = cells0.detach(), cells1.detach()
        around = self._around(decoded, cells0, cells1, geometry)
        logits = self.network.estimate_confidence(decoded, around, cells0, cells1, geometry)
        return confidence_loss(logits, decoded.points1 - decoded.points0, flow, occluded, geometry)

    @torch.no_grad()
    def _matches(self, pyramid: Pyramid) -> Decoded:
        """Return the matches of score volumes, as inference gives them."""
        geometry, network = pyramid.geometry, self.network
        decoded = decode(pyramid.Q[0].detach().clone(), geometry, "bins")
        if network.sharpness is None or pyramid.cells is None:
            return decoded
        around = self._around(decoded, *pyramid.cells, geometry)
        return refine_to_subpixel(decoded, around, geometry, network.sharpness)

    def _around(self, decoded: Decoded, cells0: Tensor, cells1: Tensor, geometry: Geometry) -> Tensor:
        network = self.network
        return scores_around(decoded, cells0, cells1, geometry, network.descriptor.patch, network.exponents[0])


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
    _set_sharpness(network, model, loss)
    if model.pooling != "auto":
        network.use_pooling(pooling_of(model.pooling), model.temperature)
    if model.nu0 != "auto":
        network.exponents.data[0] = model.nu0
    if model.learn == "features" and not any(p.requires_grad for p in network.descriptor.parameters()):
        raise DeepMatchingError(
            "This descriptor has no features to learn: set model.learn=exponents, or model.descriptor=compact."
        )
    is_dense = model.learn == "flow"
    if model.learn == "confidence" or loss.confidence:
        network.confidence = network.confidence or build_confidence(network.descriptor)
        network.confidence.requires_grad_(True)
    elif network.confidence is not None:
        network.confidence.requires_grad_(False)
    elif is_dense or loss.flow:
        raise DeepMatchingError("Training on the flow needs a confidence: run `deepmatching train confidence` first.")
    if is_dense:
        network.dense = network.dense or build_dense(network.descriptor)
    elif network.dense is not None:
        network.dense.requires_grad_(False)
    if model.learn not in ("features", "both"):  # otherwise what its author has frozen stays frozen
        network.descriptor.requires_grad_(False)
    network.exponents.requires_grad_(model.learn in ("exponents", "both"))
    if network.exponents.requires_grad and not model.learn_nu0:
        network.exponents.register_hook(_without_first)
    if network.log_temperatures is not None:
        network.log_temperatures.requires_grad_(model.learn in ("exponents", "both"))
    if loss.flow and network.sharpness is None:
        raise DeepMatchingError(
            "loss.flow needs a network that refines its matches: set it to 0, or model.subpixel=auto."
        )
    if network.sharpness is not None:
        network.sharpness.requires_grad_(loss.subpixel > 0 and model.learn not in ("confidence", "flow"))
    objective = Objective(**{name: value for name, value in vars(loss).items() if name not in ("confidence", "flow")})
    if model.learn in ("confidence", "flow"):
        objective.requires_grad_(False)
    confidence = None if model.learn == "confidence" else loss.confidence
    return TrainedModel(network, objective, amp, confidence, loss.flow, is_dense)


def untrained_parts(network: Network, init: str) -> str:
    """Return a sentence about the networks after a descriptor that learns which do not; empty if there are none."""
    if not (network.exponents.requires_grad or any(p.requires_grad for p in network.descriptor.parameters())):
        return ""
    parts = {"confidence": network.confidence, "flow": network.dense}
    kept = [n for n, part in parts.items() if part is not None and not any(p.requires_grad for p in part.parameters())]
    if not kept:
        return ""
    what = {"confidence": "confidence", "flow": "dense network"}
    return (
        f"The {' and the '.join(what[name] for name in kept)} stay as in {init} while the matches change: train them "
        f"next, with the config{'s' * (len(kept) > 1)} {' and '.join(kept)} and model.init=, or use them as they are."
    )


def _without_first(gradient: Tensor) -> Tensor:
    """Return the gradient of the exponents with 0 for ν_0, so that no optimizer moves it: they have no weight decay."""
    gradient = gradient.clone()
    gradient[0] = 0
    return gradient


def check_sizes(network: Network, config: Config) -> None:
    """Raise for crops, radii, levels and score volumes that contradict one another, as far as the config tells."""
    cells = network.descriptor.stride.bit_length() - 1
    patch = network.descriptor.cells_of_patch * network.descriptor.stride
    for key, value in (("model", network.radius), ("validation", radius_in_pixels(config.validation.radius))):
        try:
            Geometry.for_downscale(
                (patch, patch), (patch, patch), cells, value, patch=network.descriptor.cells_of_patch
            )
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
                f"loss.weights.{name} needs a level that does not exist: with {crop} and "
                f"model.levels={config.model.levels} the last one is {levels}."
            )


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
        raise DeepMatchingError(
            f"The model {model.init} has another descriptor than model.descriptor={model.descriptor}: "
            f"set model.descriptor={name}."
        )
    if model.settings:
        asked = build_network(name, radius, levels, **model.settings).descriptor
        if asked.settings() != network.descriptor.settings():
            if not isinstance(asked, Compact) or not isinstance(network.descriptor, Compact):
                raise DeepMatchingError(
                    f"The descriptor of the model {model.init} was built with other model.settings: leave them out."
                )
            grow(network.descriptor, asked)
            network.descriptor = asked
    return network


def _set_sharpness(network: Network, model: ModelConfig, loss: LossConfig) -> None:
    """Give the network the κ of ``ModelConfig.subpixel``, or none."""
    kappa = model.subpixel
    if kappa == "auto":
        if network.sharpness is not None or not loss.subpixel:
            return
        kappa = FIRST_SHARPNESS
    network.sharpness = nn.Parameter(torch.tensor(float(kappa))) if kappa else None
