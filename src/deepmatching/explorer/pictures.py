"""The pictures and pairs that the explorer knows: uploads, samples that ship, and those of the command line."""

import hashlib
import os
import re
import secrets
import shutil
import tempfile
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Generic, TypeVar

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.drawing import to_uint8_rgb
from deepmatching.errors import DeepMatchingError, check_number
from deepmatching.io.images import load_image, shrink, size_of
from deepmatching.io.masks import draw_polygon, load_mask, with_mask
from deepmatching.settings import MAX_PIXELS

MAX_UPLOAD_BYTES = 64 * 2**20  #: Largest file that can be uploaded, in bytes.
MAX_PICTURES = 32  #: Number of uploads that are kept; the oldest go.
MAX_PAIRS = 16  #: Number of pairs that are kept; the oldest go.
GIVEN = "given"  #: The id of the masks of the command line.
DIMMED = 0.3  #: What masked pixels are multiplied with where they are shown.
WHOLE = 0.999  #: Pixels of a reduced mask may be matched from this value on: all that they cover may be.
#: The pairs that ship, by id: their files in ``data/demo`` and what they show.
SAMPLES = {"sample-bunny": ("bunny_0.jpg", "bunny_1.jpg", "Big Buck Bunny, © 2008 Blender Foundation, CC BY 3.0")}

Value = TypeVar("Value")


class Unknown(DeepMatchingError):
    """Something that the explorer does not have, or has no longer."""


class LRUCache(Generic[Value]):
    """A thread-safe LRU cache; a name that it lacks raises :class:`Unknown`."""

    def __init__(self, max_size: int, what: str) -> None:
        self.max_size, self.what = max_size, what
        self._values: dict[str, Value] = {}  # the least recently used first
        self._lock = threading.Lock()

    def add(self, name: str, value: Value) -> list[Value]:
        """Keep a new value; return those that had to go."""
        with self._lock:
            self._values[name] = value
            return [self._values.pop(old) for old in [*self._values][: -self.max_size]]

    def find(self, name: str) -> Value | None:
        """Return the value of that name, or None."""
        with self._lock:
            if name in self._values:
                self._values[name] = self._values.pop(name)
            return self._values.get(name)

    def __getitem__(self, name: str) -> Value:
        if (value := self.find(name)) is None:
            raise Unknown(f"The explorer no longer has this {self.what}: open the pictures again.")
        return value


@dataclass(frozen=True)
class Picture:
    """An image file."""

    id: str
    name: str  #: shown to the user
    path: Path
    size: tuple[int, int]  #: (rows, columns)

    def about(self) -> dict[str, Any]:
        """Return what the page shows of it."""
        return {"id": self.id, "name": self.name, "size": self.size}


@dataclass(frozen=True, eq=False)
class Pair:
    """Two images, at the size at which they are shown and matched."""

    id: str
    names: tuple[str, str]
    images: tuple[Tensor, Tensor]  #: (1 or 3, H, W) in [0, 1]
    originals: tuple[tuple[int, int], tuple[int, int]]  #: (rows, columns) of the files
    credit: str = ""
    masks: tuple[np.ndarray | None, np.ndarray | None] = (None, None)  #: (H, W) bool, what may be matched; None: all
    mask_names: tuple[str, str] = ("", "")

    @cached_property
    def matched(self) -> tuple[Tensor, Tensor]:
        """The images with their masks, as the matcher takes them."""
        first, second = (with_mask(image, mask) for image, mask in zip(self.images, self.masks, strict=True))
        return first, second

    @cached_property
    def shown(self) -> tuple[Tensor, Tensor]:
        """The images with masked pixels dimmed."""
        factors = (1.0 if mask is None else torch.from_numpy(np.where(mask, 1, DIMMED)).float() for mask in self.masks)
        first, second = (image * factor for image, factor in zip(self.images, factors, strict=True))
        return first, second

    @property
    def has_masks(self) -> bool:
        """Whether one of the images has a mask."""
        return any(mask is not None for mask in self.masks)

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(rows, columns) of both images."""
        return size_of(self.images[0]), size_of(self.images[1])

    def about(self) -> dict[str, Any]:
        """Return what the page shows of it."""
        return {n: getattr(self, n) for n in ("id", "names", "sizes", "originals", "credit", "mask_names")}

    def encoded(self, which: int, suffix: str = ".png") -> bytes:
        """Return one of the images as a PNG or JPEG file."""
        quality = [cv2.IMWRITE_JPEG_QUALITY, 92] if suffix == ".jpg" else [cv2.IMWRITE_PNG_COMPRESSION, 3]
        rgb = to_uint8_rgb(self.shown[which])
        return bytes(cv2.imencode(suffix, np.ascontiguousarray(rgb[:, :, ::-1]), quality)[1].tobytes())


class Pictures:
    """Everything that was opened: uploads, in a private folder that goes with :meth:`close`, and the ``given`` pair.

    The masks of that pair are files or polygons, as ``match --mask0`` takes them.
    Images with a longer side than ``max_size`` are reduced to it; ``bit_depth`` is as in the settings of a matcher.
    """

    def __init__(
        self,
        max_size: int | None = None,
        bit_depth: int | None = None,
        given: tuple[Path, Path] | None = None,
        given_masks: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self.max_size, self.bit_depth, self.given, self.given_masks = max_size, bit_depth, given, given_masks
        files_of_pair = [*(given or ()), *(mask for mask in given_masks if mask is not None)]
        what = os.fsencode("\n".join([*map(os.path.realpath, files_of_pair), str(max_size)]))
        self._bare_id = f"given-{hashlib.sha256(what).hexdigest()[:16]}"
        masks = "+" + ".".join("" if mask is None else GIVEN for mask in given_masks)
        #: The id of the given pair, which is the same in the next run of the same command.
        self.given_id = None if given is None else self._bare_id + masks * any(given_masks)
        self.folder = Path(tempfile.mkdtemp(prefix="deepmatching-explore-"))  # mode 700
        self.pictures: LRUCache[Picture] = LRUCache(MAX_PICTURES, "picture")
        self.pairs: LRUCache[Pair] = LRUCache(MAX_PAIRS, "pair")

    def close(self) -> None:
        """Remove the uploads."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def upload(self, name: str, data: bytes) -> Picture:
        """Check a file as the command line does, and keep it."""
        shown = re.sub(r"[^\w. ()+-]", "_", Path(name.replace("\\", "/")).name).strip(". ")[-80:] or "picture"
        folder = self.folder / secrets.token_hex(16)
        path = folder / shown
        folder.mkdir()
        try:
            path.write_bytes(data)
            image = load_image(path, "picture", self.bit_depth)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _as_shown(error, folder) from None
        picture = Picture(folder.name, shown, path, size_of(image))
        for old in self.pictures.add(picture.id, picture):
            shutil.rmtree(old.path.parent, ignore_errors=True)
        return picture

    def pair_of_uploads(self, first: str, second: str) -> Pair:
        """Return the pair of two uploads."""
        return self._open(secrets.token_hex(16), (self.pictures[first].path, self.pictures[second].path))

    def pair(self, id: str) -> Pair:
        """Return the pair of that id. Samples and the pair of the command line are opened again if need be.

        ``ID+MASK0.MASK1`` is the pair of that ID with masks, uploads or :data:`GIVEN`; either may be left out.
        ``ID@640`` is the pair of that ID with longer sides of at most 640 pixels.
        """
        if (found := self.pairs.find(id)) is not None:
            return found
        whole, _, size = id.partition("@")
        if size:
            return self._reduced(self.pair(whole), size)
        bare, _, masks = whole.partition("+")
        if masks:
            return self._masked(self.pair(bare), masks)
        if id in SAMPLES:
            first, second, credit = SAMPLES[id]
            folder = files("deepmatching") / "data" / "demo"
            with as_file(folder / first) as path0, as_file(folder / second) as path1:
                return self._open(id, (path0, path1), credit)
        if self.given is not None and id == self._bare_id:
            return self._open(id, self.given)
        return self.pairs[id]

    def _reduced(self, pair: Pair, size: str) -> Pair:
        """Return a pair at a size that the page asks for."""
        max_size = int(size) if size.isdecimal() and len(size) < 10 else size
        check_number("The largest size", max_size, minimum=16, maximum=self.max_size or MAX_PIXELS, whole=True)
        first, second = (shrink(image, int(max_size)) for image in pair.images)
        mask0, mask1 = (_reduced_mask(mask, int(max_size)) for mask in pair.masks)
        reduced = replace(pair, id=f"{pair.id}@{max_size}", images=(first, second), masks=(mask0, mask1))
        self.pairs.add(reduced.id, reduced)
        return reduced

    def _masked(self, pair: Pair, ids: str) -> Pair:
        """Return a pair with the masks that the page asks for."""
        first, _, second = ids.partition(".")
        (mask0, name0), (mask1, name1) = (self._mask(id, i, pair.originals[i]) for i, id in enumerate((first, second)))
        masked = replace(pair, id=f"{pair.id}+{ids}", masks=(mask0, mask1), mask_names=(name0, name1))
        self.pairs.add(masked.id, masked)
        return masked

    def _mask(self, id: str, which: int, size: tuple[int, int]) -> tuple[np.ndarray | None, str]:
        """Return the mask of an image of this size, reduced as the images are, and its name."""
        if not id:
            return None, ""
        name = ("first mask", "second mask")[which]
        if id == GIVEN and (text := self.given_masks[which]) is not None:
            polygon = draw_polygon(text, size)
            usable = load_mask(text if polygon is None else polygon, size, name)
            return _reduced_mask(usable, self.max_size), Path(text).name if polygon is None else text
        picture = self.pictures[id]
        try:
            return _reduced_mask(load_mask(picture.path, size, name), self.max_size), picture.name
        except DeepMatchingError as error:
            raise _as_shown(error, picture.path.parent) from None

    def _open(self, id: str, paths: tuple[Path, Path], credit: str = "") -> Pair:
        names = "first picture", "second picture"
        first, second = (load_image(path, name, self.bit_depth) for path, name in zip(paths, names, strict=True))
        images = shrink(first, self.max_size), shrink(second, self.max_size)
        pair = Pair(id, (paths[0].name, paths[1].name), images, (size_of(first), size_of(second)), credit)
        self.pairs.add(id, pair)
        return pair


def _reduced_mask(usable: np.ndarray | None, max_size: int | None) -> np.ndarray | None:
    """Return a mask at the size at which its image is matched: nothing masked is in a pixel that may be."""
    if usable is None:
        return None
    reduced: np.ndarray = shrink(torch.from_numpy(usable).float()[None], max_size)[0].numpy() >= WHOLE
    return reduced


def _as_shown(error: BaseException, folder: Path) -> BaseException:
    """Return an error about an upload that calls it by its name, without the private folder."""
    is_ours = isinstance(error, DeepMatchingError)
    return DeepMatchingError(str(error).replace(f"{folder}{os.sep}", "")) if is_ours else error
