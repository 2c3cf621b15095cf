"""Images that are read ahead, described once, and kept for their next pairs as far as memory allows."""

import os
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.flow import Frame
from deepmatching.io.files import PathLike, is_file, read_bytes
from deepmatching.io.image_files import UPRIGHT, read_orientation, to_upright
from deepmatching.io.images import (
    colours_of,
    has_mask,
    mark_loaded,
    read_pixels,
    scale_to_unit,
    shrink,
    shrunk_size,
    size_of,
)
from deepmatching.io.masks import alpha_mask, load_mask, with_mask
from deepmatching.matcher import DeepMatcher
from deepmatching.network.memory import budget_for
from deepmatching.network.replay import GraphedDescribe

MEMORY_SHARE = 0.25  #: Share of the free memory that described images may take. Matching a pair needs the rest.


_Read = tuple[Tensor, tuple[int, int], int, Tensor]
_NO_MASK = torch.ones(1, 1, 1, dtype=torch.bool)


class Described(NamedTuple):
    """An image, ready to be matched."""

    image: Tensor | None  #: (C, H, W), shrunk, on the device, with its mask; None if only its descriptors are needed
    cells: Tensor  #: (1, C, h, w), on the device
    size: tuple[int, int]  #: (rows, columns) of the file
    orientation: int  #: of the stored pixels
    mask: Tensor  #: (2, H, W) bool, of the file's size, all that is left of an image with a mask; (1, 1, 1) without

    @property
    def frame(self) -> Frame:
        """The image and its descriptors."""
        assert self.image is not None
        colours = colours_of(self.image)
        return Frame(colours, colours, self.cells, self.size)


class DescribedImages:
    """Described images of a folder by name, with their pixels if ``keep_images``.

    They may take ``memory`` bytes, or a share of the memory that is free now. The ones that were not used for longest
    are dropped, but two are kept whatever their size. The folder ``masks`` may have a mask of an image, whose name is
    that of the image and ``.png``.
    """

    def __init__(
        self,
        matcher: DeepMatcher,
        folder: PathLike,
        keep_images: bool = False,
        memory: int | None = None,
        masks: PathLike | None = None,
    ) -> None:
        self.masks = None if masks is None else Path(masks)
        self.matcher, self.folder, self.keep_images = matcher, Path(folder), keep_images
        budget = budget_for(matcher.device, matcher.settings.memory)
        self.limit = int(MEMORY_SHARE * budget) if memory is None else memory
        self.described = 0  #: number of images described so far, some of them more than once
        self._describe_image = GraphedDescribe(matcher.network)
        self._is_cuda = matcher.device.type == "cuda"
        self._kept: OrderedDict[str, Described | str] = OrderedDict()  # or why there is none
        self._bytes = 0
        self._used: dict[tuple[int, int], tuple[int, int]] = {}  # part of images of a size that is described
        threads = min(16, os.cpu_count() or 1)
        self._ahead = 2 * threads if self._is_cuda else threads  # a GPU takes the images of a batch at once
        self._pool = ThreadPoolExecutor(threads, "deepmatching-reader")
        self._reading: dict[str, Future[_Read]] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def expect(self, names: Iterable[str]) -> None:
        """Drop what was read ahead and is not among the images that are now expected."""
        for name in set(self._reading).difference(names):
            self._reading.pop(name).cancel()

    def read_ahead(self, names: Iterable[str]) -> None:
        """Start to read the next images that will be asked for, a few at a time."""
        for name in names:
            if len(self._reading) > self._ahead:
                return
            if name not in self._kept and name not in self._reading:
                self._reading[name] = self._pool.submit(self.read, name)

    def forget(self) -> None:
        """Drop all described images, to free their memory."""
        self._kept.clear()
        self._bytes = 0

    def __getitem__(self, name: str) -> Described:
        """Return the described image; raise each time, without reading it again, if it cannot be read."""
        if name in self._kept:
            self._kept.move_to_end(name)
        else:
            reading = self._reading.pop(name, None)
            try:
                kept: Described | str = self._describe(*(self.read(name) if reading is None else reading.result()))
            except DeepMatchingError as error:
                kept = str(error)  # the error itself would keep the content of the file
            self._kept[name] = kept
            self._bytes += _bytes(kept)
            while self._bytes > self.limit and len(self._kept) > 2:
                self._bytes -= _bytes(self._kept.popitem(last=False)[1])
        found = self._kept[name]
        if isinstance(found, str):
            raise DeepMatchingError(found)
        return found

    def read(self, name: str) -> _Read:
        """Read an image, in any thread: shrunk pixels, size of the file, orientation of the stored pixels, and mask.

        The pixels are float32 in [0, 1], or uint8, which a GPU scales faster.
        """
        path, settings = self.folder / name, self.matcher.settings
        data = self.content(name)
        pixels = read_pixels(path, data=data)
        size, orientation = size_of(pixels), read_orientation(path, data)
        if (usable := self._mask(name, data, size, orientation)) is not None:
            pixels = with_mask(scale_to_unit(pixels, f"image ('{path}')", settings.bit_depth), usable, "mask")
        mask = (pixels[-1:] > 0).expand(2, -1, -1) if has_mask(pixels) else _NO_MASK
        if not self._is_cuda or pixels.dtype != torch.uint8 or shrunk_size(size, settings.max_size) != size:
            pixels = shrink(scale_to_unit(pixels, f"image ('{path}')", settings.bit_depth), settings.max_size)
        if self._is_cuda:  # a copy from pinned memory does not wait
            pixels = pixels.pin_memory()
        return pixels, size, orientation, mask

    @property
    def may_have_masks(self) -> bool:
        """Whether some images may have masks."""
        return self.masks is not None or self.matcher.settings.use_alpha

    def _mask(self, name: str, data: bytes, size: tuple[int, int], orientation: int) -> np.ndarray | None:
        """Return which pixels of an upright image may be matched, by its mask and its alpha; None if it has neither."""
        alpha = alpha_mask(self.folder / name, data=data) if self.matcher.settings.use_alpha else None
        path = None if self.masks is None else self.masks / f"{name}.png"
        if path is None or not is_file(path):
            return alpha
        data = read_bytes(path, "mask")
        usable = (read_pixels(path, "mask", data) != 0).any(dim=0).numpy()
        # A mask shows the stored pixels, as COLMAP sees them, unless it says how to turn them itself.
        if read_orientation(path, data) == UPRIGHT:
            usable = to_upright(usable, orientation)
        usable = load_mask(usable, size, f"mask ('{path}')")
        return usable if alpha is None else usable & alpha

    def content(self, name: str) -> bytes:
        """Return the content of an image's file, in any thread."""
        return read_bytes(self.folder / name, "image")

    def load(self, name: str) -> Tensor:
        """Return the image at its own size, as ``DeepMatcher.load`` does."""
        path = self.folder / name
        data = self.content(name)
        pixels = read_pixels(path, data=data)
        loaded = scale_to_unit(pixels, f"image ('{path}')", self.matcher.settings.bit_depth)
        return with_mask(loaded, self._mask(name, data, size_of(pixels), read_orientation(path, data)))

    @torch.no_grad()
    def _describe(self, pixels: Tensor, size: tuple[int, int], orientation: int, mask: Tensor) -> Described:
        shape = size_of(pixels)
        if shape not in self._used:
            self._used[shape] = self.matcher.network.geometry(shape, shape).used0  # raises if the image is too small
        image = pixels.to(self.matcher.device, non_blocking=self._is_cuda)
        image = image if image.is_floating_point() else scale_to_unit(image)
        cells = self._describe_image(image[None], self._used[shape])
        self.described += 1
        return Described(mark_loaded(image) if self.keep_images else None, cells, size, orientation, mask)


def _bytes(kept: Described | str) -> int:
    return (
        0
        if isinstance(kept, str)
        else sum(part.nbytes for part in (kept.cells, kept.image, kept.mask) if part is not None)
    )
