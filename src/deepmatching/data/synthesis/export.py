"""Synthetic pairs as files, in the layout of Flying Chairs."""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from deepmatching.data.datasets.pairs import Pair, list_folder
from deepmatching.data.datasets.published import SPLIT_FILE
from deepmatching.data.synthesis.generator import Synthesizer, check_size
from deepmatching.data.synthesis.photos import Photos, find_pictures
from deepmatching.data.synthesis.settings import SynthesisSettings
from deepmatching.errors import DeepMatchingError, check_number
from deepmatching.io.files import write_file
from deepmatching.io.flow import write_flow
from deepmatching.io.store import Store

_MANIFEST = "synthesis.json"
_VALIDATION_PERIOD = 16  # every 16th pair is for validation
_NAMES = ("img1.ppm", "img2.ppm", "occ.png", "flow.flo")  # in the order of writing: a pair with a flow is complete


@dataclass(frozen=True)
class Export:
    """Writes `count` pairs of `size` (rows, columns) to the folder `out`; pair i depends on `seed` and i alone.

    Pairs 16, 32, … are for validation and show photographs and cut-outs that no other pair shows. If there are too few
    `photos` to hold some out, no pair is for validation. Pairs of an earlier run beyond the count are kept, in the
    split file too.
    """

    out: Path
    photos: str | os.PathLike[str]
    count: int
    size: tuple[int, int] = (384, 512)
    seed: int = 0
    settings: SynthesisSettings = field(default_factory=SynthesisSettings)
    device: str | torch.device = "cpu"

    @property
    def total(self) -> int:
        """Return the number of pairs in the folder after the run."""
        found = (re.fullmatch(r"(\d+)_img1\.ppm", name) for name in list_folder(self.out / "data"))
        return max([self.count, *(int(match[1]) for match in found if match)])

    def run(self) -> Iterator[bool]:
        """Make the pairs one by one; yield whether each is new or exists from an earlier run."""
        check_number("The number of pairs", self.count, minimum=1, whole=True)
        check_size(self.size, self.settings)
        find_pictures(self.photos)  # raises at once; decoding takes a while
        store = Store(self.out, _MANIFEST, "pairs", ("data",), "folder", "use the same settings, or another folder")
        with store.reserve():
            makers = self._makers()
            settings = self._settings(makers)
            has_pairs = any((self.out / "data").glob("*_img1.ppm"))
            if has_pairs and not store.exists:
                raise DeepMatchingError(f"The pairs in '{self.out}' are from another source: give another folder.")
            if has_pairs:
                store.check_settings(store.read(dict[str, Any]), settings)
            splits = [len(makers) if number % _VALIDATION_PERIOD == 0 else 1 for number in range(1, self.total + 1)]
            for number, split in enumerate(splits, 1):
                paths = [self.out / "data" / f"{number:05d}_{name}" for name in _NAMES]
                is_new = not all(path.is_file() for path in paths)
                if is_new:
                    pair = makers[split - 1].batch(1, pair_generator(self.seed, number))
                    if not has_pairs:  # not before a pair could be made, so that a failed run blocks no other
                        store.write(settings)
                        has_pairs = True
                    _write(pair, paths)
                yield is_new
            write_file(self.out / SPLIT_FILE, "".join(f"{split}\n" for split in splits))

    def _makers(self) -> list[Synthesizer]:
        """Return a synthesizer for training and one for validation, or one for all pairs."""
        try:
            parts = [Photos.load(self.photos, self.device, split) for split in ("train", "val")]
        except DeepMatchingError:
            parts = [Photos.load(self.photos, self.device, "all")]
        return [Synthesizer(photos, self.size, self.settings) for photos in parts]

    def _settings(self, makers: list[Synthesizer]) -> dict[str, object]:
        """Return everything that the pairs depend on."""
        pictures = [[maker.photos.photograph_count, maker.photos.cutout_count] for maker in makers]
        return {"seed": self.seed, "size": list(self.size), "pictures": pictures, "settings": asdict(self.settings)}


def pair_generator(seed: int, number: int) -> torch.Generator:
    """Return the random numbers of one pair."""
    state = np.random.SeedSequence([abs(seed), int(seed < 0), number]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def _write(pair: Pair, paths: list[Path]) -> None:
    occluded = (pair.occluded[0].cpu().numpy() * 255).astype(np.uint8)
    images = (image[0].mul(255).round().byte().permute(1, 2, 0).flip(2).cpu().numpy() for image in pair[:2])
    for path, pixels in zip(paths, (*images, occluded), strict=False):
        written, data = cv2.imencode(path.suffix, pixels)
        if not written:
            raise DeepMatchingError(f"OpenCV cannot encode '{path.name}'; install it with support for {path.suffix}.")
        write_file(path, data.tobytes())
    write_flow(paths[-1], pair.flow[0].cpu().numpy())
