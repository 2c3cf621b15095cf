"""Flow by the dense network, which starts at the interpolated flow."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from deepmatching.flow.confidence import probability
from deepmatching.flow.correction import DenseFlow, InitialFlow
from deepmatching.flow.correction.dense_network import FARTHEST, probability_within
from deepmatching.flow.edges import edge_strength
from deepmatching.flow.filters import MatchTensors
from deepmatching.flow.interpolation import sparse_to_dense
from deepmatching.flow.result import on_device
from deepmatching.flow.settings import InterpolationSettings
from deepmatching.geometry.targets import Decoded, pair_of
from deepmatching.kernels.cuda_graphs import Replayed
from deepmatching.settings import CORRECT_WITHIN

LARGEST_CORRECTION = 10.0  #: larger corrections of the interpolated flow by the dense network do not count, in pixels


class InitialFlows:
    """The interpolated flow of a batch of pairs.

    On a GPU, where a pair takes many small kernels, they are replayed as graphs, those of four pairs at a time.
    """

    def __init__(self) -> None:
        self._replayed = [Replayed(initial_flow) for _ in range(4)]
        self._streams: list[torch.cuda.Stream] = []

    @torch.no_grad()
    def __call__(
        self,
        decoded: Decoded,
        image0: Tensor,
        image1: Tensor,
        settings: InterpolationSettings = InterpolationSettings(),  # noqa: B008 - frozen
    ) -> InitialFlow:
        """Return where the dense network starts for a batch of images (B, 1 or 3, H, W) in [0, 1] and their matches."""
        pairs = [(image0[b], image1[b], None, settings, *pair_of(decoded, b)) for b in range(len(image0))]
        parts = self._at_a_time(pairs) if on_device(image0) else [initial_flow(*pair) for pair in pairs]
        return InitialFlow(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def _at_a_time(self, pairs: list[tuple[Any, ...]]) -> list[InitialFlow]:
        current = torch.cuda.current_stream()
        self._streams = self._streams or [torch.cuda.Stream() for _ in self._replayed]
        parts = []
        for stream in self._streams:
            stream.wait_stream(current)
        for n, pair in enumerate(pairs):
            with torch.cuda.stream(self._streams[n % len(self._streams)]):
                parts.append(self._replayed[n % len(self._streams)](*pair))
        for stream in self._streams:
            current.wait_stream(stream)
        return parts


@torch.no_grad()
def initial_flow(
    image0: Tensor, image1: Tensor, edges: Tensor | None, settings: InterpolationSettings, *matches: Tensor | None
) -> InitialFlow:
    """Return the interpolated flow of one pair (1 or 3, H, W) of images, and how likely it is right.

    The edge strength (H, W) of the first image is detected if it is None; the matches are the tensors of ``Decoded``.
    """
    found = MatchTensors.of_decoded(Decoded._make(matches), 0, settings.confidence)
    if not on_device(image0) and not found.counts.any():
        nothing = torch.zeros_like(image0[None, :1])
        return InitialFlow(nothing.expand(1, 2, -1, -1), nothing, found.counts.sum()[None])
    strength = edge_strength(image0) if edges is None else edges
    flow, source, _, counts, _ = sparse_to_dense(found, strength, image0, None, settings)
    flow = torch.nan_to_num(flow, 0.0, 0.0, 0.0).clamp(-FARTHEST, FARTHEST)
    likely = probability(flow, source, image0, image1)
    return InitialFlow(flow.permute(2, 0, 1)[None], torch.nan_to_num(likely)[None, None], counts.sum()[None])


def corrected(start: InitialFlow, found: DenseFlow) -> tuple[Tensor, Tensor]:
    """Return the flow (B, 2, h, w) of the dense network where it is near the interpolated one, which stays elsewhere.

    Larger corrections are more often wrong: where there is little to see, the matches along edges say more. Also
    returns the probability (B, 1, h, w) that the flow is less than 3 pixels off.
    """
    rows, columns = found.flow.shape[2:]
    flow, likely = (maps[:, :, :rows, :columns] for maps in start[:2])
    stays = (found.flow - flow).square().sum(dim=1, keepdim=True) > LARGEST_CORRECTION**2
    within = probability_within(found.mixture, CORRECT_WITHIN)[:, None]
    return torch.where(stays, flow, found.flow), torch.where(stays, likely, within)


def occlusion_of(occluded: Tensor, flow: Tensor) -> Tensor:
    """Return the probability that each pixel is not visible in the second image, (H, W) float32.

    That of the reference points, ``occluded`` (H_0, W_0), interpolated; 1 where the flow (H, W, 2) leaves the image.
    """
    height, width = flow.shape[:2]
    step = min(height // occluded.shape[0], width // occluded.shape[1])  # α₀: the rest is less than one patch
    fine = functional.interpolate(occluded[None, None], scale_factor=step, mode="bilinear", align_corners=False)
    fine = extended(fine, (height, width))[0, 0]
    x = torch.arange(width, device=flow.device) + flow[..., 0]
    y = torch.arange(height, device=flow.device)[:, None] + flow[..., 1]
    outside = (x < -0.5) | (x > width - 0.5) | (y < -0.5) | (y > height - 0.5)
    return torch.where(outside, 1.0, fine)


def extended(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return maps (B, C, h, w) cut or extended to this size by repeating the last row and column."""
    below, right = (max(0, side - own) for side, own in zip(size, maps.shape[2:], strict=True))
    return functional.pad(maps, (0, right, 0, below), mode="replicate")[:, :, : size[0], : size[1]]
