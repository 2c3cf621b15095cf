"""DeepMatcher: pictures in, matches out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from deepmatching.decoding import Decoded, Reciprocal
from deepmatching.defaults import DEFAULT
from deepmatching.errors import DeepMatchingError
from deepmatching.images import ImageLike, load_image
from deepmatching.matches import Matches, from_corners
from deepmatching.memory import Plan, budget_for, plan_decoding, pyramid_bytes, require
from deepmatching.models import load_network, save_network
from deepmatching.network import Network
from deepmatching.operators.kernels import has_kernels

if TYPE_CHECKING:
    from deepmatching.graphs import GraphedDecode


#: Bytes up to which a decoding is recorded as a CUDA graph, which keeps its memory; larger ones are not launch-bound.
LARGEST_GRAPH = 2**30


@dataclass(frozen=True)
class Settings:
    """What a user can set; each value is checked here, once.

    Attributes:
        radius: largest displacement along each axis in pixels, or ``"full"`` for no limit.
        levels: number of times that patches are aggregated, or None for the original's rule.
        downscale: a descriptor cell is 2^downscale pixels wide; None for the model's own (1 for ``hog``).
        reciprocal: how matches are verified, see ``deepmatching.decoding``.
        device: ``"auto"`` (cuda, else mps, else cpu), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
        memory: bytes that matching may use; None for four fifths of what is free. If less is allowed than the work
            takes at once, it is cut into pieces, with the same matches.
        half: correlate and store scores in half precision (CUDA only): faster, and a few matches may differ.
        subpixel: refine matches between the cells of 2 pixels, if the model has learned to; ``hog`` has not.
    """

    radius: int | Literal["full"] = 80
    levels: int | None = None
    downscale: int | None = None
    reciprocal: Reciprocal = "bins"
    device: str | torch.device = "auto"
    memory: int | None = None
    half: bool = False
    subpixel: bool = True

    def __post_init__(self) -> None:
        if self.radius != "full" and (not _is_whole(self.radius) or int(self.radius) <= 0):
            raise DeepMatchingError(f"The radius must be a positive number of pixels or 'full', not {self.radius!r}.")
        if self.levels is not None and (not _is_whole(self.levels) or self.levels < 0):
            raise DeepMatchingError(f"levels must be a whole number, 0 or more, not {self.levels!r}.")
        if self.downscale is not None and not (_is_whole(self.downscale) and self.downscale in (0, 1, 2)):
            raise DeepMatchingError(f"downscale must be 0, 1 or 2, not {self.downscale!r}.")
        if self.reciprocal not in get_args(Reciprocal):
            raise DeepMatchingError(
                f"reciprocal must be {', '.join(get_args(Reciprocal)[:-1])} or {get_args(Reciprocal)[-1]}, "
                f"not {self.reciprocal!r}."
            )
        if self.memory is not None and (not _is_whole(self.memory) or self.memory <= 0):
            raise DeepMatchingError(f"memory must be a positive number of bytes, not {self.memory!r}.")
        if self.half and not (choose_device(self.device).type == "cuda" and has_kernels("cuda")):
            raise DeepMatchingError("Half precision needs a CUDA device and Triton: leave it off.")
        choose_device(self.device)


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def choose_device(device: str | torch.device) -> torch.device:
    """The device of that name, checked to be there; ``auto`` prefers cuda, then mps."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise DeepMatchingError(f"Unknown device {str(device)!r}: use auto, cpu, cuda or mps.") from None
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (chosen.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(chosen.type, False):
        raise DeepMatchingError(f"There is no usable device '{chosen}' on this machine: use --device auto or cpu.")
    return chosen


class DeepMatcher:
    """Finds quasi-dense matches between two images.

    >>> matcher = DeepMatcher.from_pretrained(radius=80)
    >>> matches = matcher.match("a.png", "b.png")

    Args:
        network: the U-shaped network; ``from_pretrained`` makes one.
        settings: see :class:`Settings`.
    """

    def __init__(self, network: Network, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.device = choose_device(self.settings.device)
        self.network = network.to(self.device).eval()
        self._last: tuple[object, ...] = ()  # sizes of the last batch, and the graph recorded for them
        self._graph: GraphedDecode | None = None
        self._lock = Lock()

    @classmethod
    def from_pretrained(cls, model: str | os.PathLike[str] = DEFAULT, **settings: Any) -> DeepMatcher:
        """The matcher of a model's name or file, with any of the :class:`Settings` by keyword."""
        known = [field.name for field in fields(Settings)]
        for name in settings:
            if name not in known:
                raise DeepMatchingError(f"There is no setting '{name}': use {', '.join(known)}.")
        checked = Settings(**settings)
        radius = None if checked.radius == "full" else int(checked.radius)
        return cls(load_network(model, radius, checked.levels, checked.downscale), checked)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a ``.safetensors`` file that ``from_pretrained`` reads."""
        save_network(self.network, path)

    # ------------------------------------------------------------------ matching

    def match(self, image0: ImageLike, image1: ImageLike) -> Matches:
        """The verified matches between two images, in raster order of the first.

        Args:
            image0, image1: path, PIL image, array (rows, columns[, channels]) or tensor (channels, rows, columns);
                floating-point values are in [0, 1]. Sizes may differ.
        """
        return next(self.match_pairs([(image0, image1)]))

    def match_pairs(self, pairs: Iterable[tuple[ImageLike, ImageLike]], batch_size: int = 1) -> Iterator[Matches]:
        """The matches of many pairs, one after the other; neighbours of equal sizes share a batch.

        The matches do not depend on ``batch_size``.
        """
        if batch_size < 1:
            raise DeepMatchingError(f"batch_size must be at least 1, not {batch_size}.")
        batch: list[tuple[Tensor, Tensor]] = []
        for pair in pairs:
            if len(pair) != 2:
                raise DeepMatchingError(f"A pair must be two images, not {len(pair)}.")
            image0, image1 = (load_image(image, f"image{i}") for i, image in enumerate(pair))
            fits = not batch or (batch[0][0].shape, batch[0][1].shape) == (image0.shape, image1.shape)
            if batch and (len(batch) >= batch_size or not fits):
                yield from self._match_batch(batch)
                batch = []
            batch.append((image0, image1))
        if batch:
            yield from self._match_batch(batch)

    def _match_batch(self, batch: list[tuple[Tensor, Tensor]]) -> Iterator[Matches]:
        image0, image1 = (torch.stack([pair[i] for pair in batch]).to(self.device) for i in (0, 1))
        size0, size1 = ((image.shape[2], image.shape[3]) for image in (image0, image1))
        plan = self.plan(size0, size1, len(batch))
        for start in range(0, len(batch), plan.batch):
            part = slice(start, start + plan.batch)
            decoded = self._decode(image0[part], image1[part], plan)
            for b in range(len(decoded.scores)):
                yield matches_of(decoded, b, size0, size1)

    def _decode(self, image0: Tensor, image1: Tensor, plan: Plan) -> Decoded:
        """Decode a batch; on CUDA by a graph from the second batch of equal sizes on, since launches dominate there."""
        if self.device.type == "cuda" and plan.strips == 1 and plan.needed <= LARGEST_GRAPH:
            with self._lock:  # the graph has buffers of its own: threads that share a matcher take turns
                return self._decode_by_graph(image0, image1)
        how = self.settings
        return self.network.decode(image0, image1, how.reciprocal, plan.strips, how.half, how.subpixel)

    def _decode_by_graph(self, image0: Tensor, image1: Tensor) -> Decoded:
        how = self.settings
        exponents = self.network.exponents
        geometry = self.network.geometry(*((i.shape[2], i.shape[3]) for i in (image0, image1)))
        shapes = (tuple(image0.shape), tuple(image1.shape), geometry, exponents._version, exponents.data_ptr())
        if shapes != self._last:
            self._last, self._graph = shapes, None
            return self.network.decode(image0, image1, how.reciprocal, half=how.half, subpixel=how.subpixel)
        if self._graph is None:
            from deepmatching.graphs import GraphedDecode

            self._graph = GraphedDecode(
                self.network,
                shapes[0],
                shapes[1],
                how.reciprocal,
                how.half,
                how.subpixel,
            )
        return self._graph(image0, image1)

    def plan(self, size0: tuple[int, int], size1: tuple[int, int], batch: int = 1) -> Plan:
        """How images of these sizes (rows, columns) will be matched within the memory, and how much that takes.

        Raises:
            OutOfMemoryError: if it cannot be done.
        """
        geometry = self.network.geometry(size0, size1)
        budget = budget_for(self.device, self.settings.memory)
        return plan_decoding(geometry, self.network.descriptor, batch, self.device.type, budget)

    # ------------------------------------------------------------------ looking inside

    @torch.no_grad()
    def draw_scores(
        self,
        image0: ImageLike,
        image1: ImageLike,
        point: tuple[float, float],
        path: str | os.PathLike[str] | None = None,
    ) -> np.ndarray:
        """A figure of the score maps S_0 … S_L and Q_L … Q_0 of the reference point nearest to (x, y).

        Returns:
            (rows, columns, 3) uint8 RGB; also written to ``path`` if given.
        """
        from deepmatching.drawing import draw_score_maps, write_image

        first, second = (load_image(i, n)[None].to(self.device) for i, n in ((image0, "image0"), (image1, "image1")))
        geometry = self.network.geometry((first.shape[2], first.shape[3]), (second.shape[2], second.shape[3]))
        x, y = point
        if not (0 <= x < first.shape[3] and 0 <= y < first.shape[2]):
            raise DeepMatchingError(
                f"The point ({x:g}, {y:g}) is not in the first image of {first.shape[3]}x{first.shape[2]} pixels: "
                "choose one inside."
            )
        needed = pyramid_bytes(geometry, self.network.descriptor, training=False, device=self.device.type)
        require(needed, self.device, self.settings.memory)
        pyramid = self.network(first, second)
        rows: list[list[tuple[str, np.ndarray]]] = [[], []]
        for l in range(geometry.L + 1):
            i, j = (
                int((p - (at + 0.5)).abs().argmin()) for p, at in zip(geometry.reference_points(l), (y, x), strict=True)
            )
            for row, (letter, volumes) in enumerate((("S", pyramid.S), ("Q", pyramid.Q))):
                rows[row].append((f"{letter}_{l}", volumes[l][0, i, j].cpu().numpy()))
        picture = draw_score_maps(rows)
        if path is not None:
            write_image(path, picture)
        return picture


def matches_of(decoded: Decoded, b: int, size0: tuple[int, int], size1: tuple[int, int]) -> Matches:
    """The verified matches of pair b of a batch."""
    kept = decoded.verified[b]
    return Matches(
        from_corners(decoded.points0[kept]),
        from_corners(decoded.points1[b][kept]),
        decoded.scores[b][kept],
        size0,
        size1,
    )
