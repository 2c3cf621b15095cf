"""FlowResult: what ``DeepMatcher.flow`` returns."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import atomic_write
from deepmatching.io.flow import write_flow

if TYPE_CHECKING:
    from deepmatching.io.images import ImageLike

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class FlowResult:
    """The motion of every pixel of the first image.

    Attributes:
        flow: (H, W, 2) float32, displacement (x, y) in pixels; pixel (x, y) of the first image is at
            (x + flow[y, x, 0], y + flow[y, x, 1]) in the second. Never NaN.
        confidence: (H, W) float32 in [0, 1], how likely the displacement is within 3 pixels of the true one.
        matches: the number of matches that it was interpolated from, after the filters.
        seconds: what each stage took.
    """

    flow: np.ndarray
    confidence: np.ndarray
    matches: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def save(self, path: PathLike) -> None:
        """Write the flow to ``.flo``, ``.png`` (KITTI), ``.pfm`` or ``.npy``, as the suffix says."""
        write_flow(path, self.flow)

    def save_confidence(self, path: PathLike) -> None:
        """Write the confidence to ``.npy`` (float32) or ``.png`` (16 bits, white is 1)."""
        check_confidence_suffix(path)
        if Path(path).suffix.lower() == ".npy":
            stream = io.BytesIO()
            np.save(stream, self.confidence, allow_pickle=False)
            data = stream.getvalue()
        else:
            levels = np.rint(self.confidence * np.float32(65535)).astype(np.uint16)
            data = cv2.imencode(".png", levels)[1].tobytes()
        with atomic_write(path) as temporary:
            temporary.write_bytes(data)

    def draw(
        self, path: PathLike | None = None, image0: ImageLike | None = None, image1: ImageLike | None = None
    ) -> np.ndarray:
        """A picture of the flow, uint8 RGB (rows, columns, 3); also written to ``path`` if given.

        With the first image it is a figure: image, flow and confidence; with both, also the second image taken back by
        the flow, which looks like the first where the flow is right. Without them, the colours of the flow alone.
        """
        from deepmatching.drawing.flow import draw_flow, draw_flow_figure
        from deepmatching.drawing.pictures import write_image
        from deepmatching.io.images import load_image

        if image0 is None:
            picture = draw_flow(self.flow)
        else:
            second = None if image1 is None else load_image(image1, "image1")
            picture = draw_flow_figure(load_image(image0, "image0"), self.flow, self.confidence, second)
        if path is not None:
            write_image(path, picture)
        return picture


def check_confidence_suffix(path: PathLike) -> None:
    """Raise with a clear sentence if a confidence map cannot be written under this name."""
    if Path(path).suffix.lower() not in (".npy", ".png"):
        raise DeepMatchingError(f"Cannot tell the format of the confidence '{path}': name it .npy or .png.")
