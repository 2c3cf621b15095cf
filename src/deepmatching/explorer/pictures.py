"""The pictures and pairs that the explorer knows: uploads, samples that ship, and those of the command line."""

import hashlib
import os
import re
import secrets
import shutil
import tempfile
import threading
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Generic, TypeVar

import cv2
import numpy as np
from torch import Tensor

from deepmatching.drawing import to_uint8_rgb
from deepmatching.errors import DeepMatchingError
from deepmatching.io.images import load_image, shrink, size_of

MAX_UPLOAD_BYTES = 64 * 2**20  #: Largest file that can be uploaded, in bytes.
MAX_PICTURES = 32  #: Number of uploads that are kept; the oldest go.
MAX_PAIRS = 16  #: Number of pairs that are kept; the oldest go.
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

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(rows, columns) of both images."""
        return size_of(self.images[0]), size_of(self.images[1])

    def about(self) -> dict[str, Any]:
        """Return what the page shows of it."""
        return {name: getattr(self, name) for name in ("id", "names", "sizes", "originals", "credit")}

    def encoded(self, which: int, suffix: str = ".png") -> bytes:
        """Return one of the images as a PNG or JPEG file."""
        quality = [cv2.IMWRITE_JPEG_QUALITY, 92] if suffix == ".jpg" else [cv2.IMWRITE_PNG_COMPRESSION, 3]
        rgb = to_uint8_rgb(self.images[which])
        return bytes(cv2.imencode(suffix, np.ascontiguousarray(rgb[:, :, ::-1]), quality)[1].tobytes())


class Pictures:
    """Everything that was opened: uploads, in a private folder that goes with :meth:`close`, and the ``given`` pair.

    Images with a longer side than ``max_size`` are reduced to it; ``bit_depth`` is as in the settings of a matcher.
    """

    def __init__(
        self, max_size: int | None = None, bit_depth: int | None = None, given: tuple[Path, Path] | None = None
    ) -> None:
        self.max_size, self.bit_depth, self.given = max_size, bit_depth, given
        what = os.fsencode("\n".join([*map(os.path.realpath, given or ()), str(max_size)]))
        #: The id of the given pair, which is the same in the next run of the same command.
        self.given_id = None if given is None else f"given-{hashlib.sha256(what).hexdigest()[:16]}"
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
            if isinstance(error, DeepMatchingError):
                raise DeepMatchingError(str(error).replace(f"{folder}{os.sep}", "")) from None
            raise
        picture = Picture(folder.name, shown, path, size_of(image))
        for old in self.pictures.add(picture.id, picture):
            shutil.rmtree(old.path.parent, ignore_errors=True)
        return picture

    def pair_of_uploads(self, first: str, second: str) -> Pair:
        """Return the pair of two uploads."""
        return self._open(secrets.token_hex(16), (self.pictures[first].path, self.pictures[second].path))

    def pair(self, id: str) -> Pair:
        """Return the pair of that id. Samples and the pair of the command line are opened again if need be."""
        if (found := self.pairs.find(id)) is not None:
            return found
        if id in SAMPLES:
            first, second, credit = SAMPLES[id]
            folder = files("deepmatching") / "data" / "demo"
            with as_file(folder / first) as path0, as_file(folder / second) as path1:
                return self._open(id, (path0, path1), credit)
        if self.given is not None and id == self.given_id:
            return self._open(id, self.given)
        return self.pairs[id]

    def _open(self, id: str, paths: tuple[Path, Path], credit: str = "") -> Pair:
        names = "first picture", "second picture"
        first, second = (load_image(path, name, self.bit_depth) for path, name in zip(paths, names, strict=True))
        images = shrink(first, self.max_size), shrink(second, self.max_size)
        pair = Pair(id, (paths[0].name, paths[1].name), images, (size_of(first), size_of(second)), credit)
        self.pairs.add(id, pair)
        return pair
