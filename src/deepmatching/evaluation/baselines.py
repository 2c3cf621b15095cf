"""What a user would pick instead, out of OpenCV: keypoints (SIFT, ORB, AKAZE) and classical dense flow.

They have the same methods as ``DeepMatcher`` and are evaluated by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.io.images import ImageLike, load_image
from deepmatching.matches import Matches


def baseline(name: str) -> KeypointMatcher | DenseMethod:
    """The method of that name, one of :data:`KEYPOINTS` or :data:`DENSE`."""
    if name in KEYPOINTS:
        return KeypointMatcher(name)
    if name in DENSE:
        return DenseMethod(name)
    raise DeepMatchingError(f"Unknown method '{name}': use {', '.join((*KEYPOINTS, *DENSE))}.")


@dataclass(frozen=True)
class KeypointMatcher:
    """Keypoints whose descriptors are each other's nearest, and much nearer than the second nearest.

    A score is 1 − d₁/d₂, of the distances to the nearest and the second nearest descriptor of the other image.

    Attributes:
        name: one of :data:`KEYPOINTS`.
        ratio: the largest d₁/d₂ of a match.
    """

    name: str
    ratio: float = 0.8

    def __post_init__(self) -> None:
        KEYPOINTS[self.name]()  # what OpenCV lacks is said now

    def match(self, image0: ImageLike, image1: ImageLike) -> Matches:
        grey0, grey1 = _greys(image0, image1)
        _check_size(self.name, grey0)
        _check_size(self.name, grey1)
        detector, norm = KEYPOINTS[self.name]()
        points0, descriptors0 = _describe(detector, grey0)
        points1, descriptors1 = _describe(detector, grey1)
        chosen: list[tuple[int, int]] = []
        scores: list[float] = []
        if len(points0) > 1 and len(points1) > 1:
            comparer = cv2.BFMatcher(norm)
            back = {m[0].queryIdx: m[0].trainIdx for m in comparer.knnMatch(descriptors1, descriptors0, k=1)}
            for nearest, second in comparer.knnMatch(descriptors0, descriptors1, k=2):
                ratio = nearest.distance / max(second.distance, 1e-9)
                if ratio <= self.ratio and back[nearest.trainIdx] == nearest.queryIdx:
                    chosen.append((nearest.queryIdx, nearest.trainIdx))
                    scores.append(1.0 - ratio)
        from0, from1 = np.array(chosen, np.int64).reshape(-1, 2).T
        return Matches(
            torch.from_numpy(points0[from0]),
            torch.from_numpy(points1[from1]),
            torch.tensor(scores, dtype=torch.float32),
            (grey0.shape[0], grey0.shape[1]),
            (grey1.shape[0], grey1.shape[1]),
        )


@dataclass(frozen=True)
class DenseMethod:
    """A dense flow method of OpenCV; as a matcher, every pixel is a match of its own.

    Attributes:
        name: one of :data:`DENSE`.
    """

    name: str

    #: px that a match spreads in an evaluation: a pixel takes its own displacement and no neighbour's
    spread = 0

    def __post_init__(self) -> None:
        DENSE[self.name]()

    def flow(self, image0: ImageLike, image1: ImageLike) -> np.ndarray:
        """(H, W, 2) float32. A second image of another size is cropped or continued to that of the first."""
        first, second = (_pixels(image, name) for image, name in ((image0, "image0"), (image1, "image1")))
        height, width = first.shape[:2]
        _check_size(self.name, first)
        second = second[:height, :width]
        missing = height - second.shape[0], width - second.shape[1]
        second = cv2.copyMakeBorder(second, 0, missing[0], 0, missing[1], cv2.BORDER_REPLICATE)
        try:
            flow = DENSE[self.name]()(first, second)
        except cv2.error as error:
            raise DeepMatchingError(
                f"OpenCV's {self.name} fails on a pair of {width} x {height} pixels ({error.err}); "
                "leave the pair out or choose another method."
            ) from error
        return np.asarray(flow, np.float32)

    def match(self, image0: ImageLike, image1: ImageLike) -> Matches:
        image0, image1 = load_image(image0, "image0"), load_image(image1, "image1")
        flow = self.flow(image0, image1)
        height, width = flow.shape[:2]
        points = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=2).astype(np.float32)
        start, end = (torch.from_numpy(field.reshape(-1, 2)) for field in (points, points + flow))
        return Matches(start, end, torch.ones(len(start)), (height, width), (image1.shape[1], image1.shape[2]))


# ---------------------------------------------------------------------- OpenCV

#: From two uint8 BGR images of equal size to a flow (H, W, 2).
Calculation = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _own(function: str) -> Callable[..., Any]:
    """A function of OpenCV itself that its type stubs do not list."""
    return getattr(cv2, function)  # type: ignore[no-any-return]


def _contrib(module: str, function: str) -> Callable[..., Any]:
    """A function of OpenCV's contrib modules, which not every OpenCV has."""
    found = getattr(getattr(cv2, module, None), function, None)
    if found is None:
        raise DeepMatchingError(
            f"This OpenCV has no {module}.{function}; install opencv-contrib-python-headless instead of opencv-python."
        )
    return found  # type: ignore[no-any-return]


def _akaze() -> tuple[Any, int]:
    create = getattr(cv2, "AKAZE_create", None) or _contrib("xfeatures2d", "AKAZE_create")  # moved in OpenCV 5
    return create(threshold=1e-4), cv2.NORM_HAMMING


def _on_grey(calculate: Callable[[np.ndarray, np.ndarray, Any], np.ndarray]) -> Calculation:
    def calculation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        grey0, grey1 = (cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) for image in (first, second))
        return calculate(grey0, grey1, None)

    return calculation


def _on_color(calculate: Callable[[np.ndarray, np.ndarray, Any], np.ndarray]) -> Calculation:
    return lambda first, second: calculate(first, second, None)


#: Detector with its descriptor, and the norm that compares descriptors. Thresholds for thousands of keypoints.
KEYPOINTS: dict[str, Callable[[], tuple[Any, int]]] = {
    "sift": lambda: (_own("SIFT_create")(contrastThreshold=0.01), cv2.NORM_L2),
    "orb": lambda: (_own("ORB_create")(nfeatures=10000), cv2.NORM_HAMMING),
    "akaze": _akaze,
}

#: With OpenCV's own parameters.
DENSE: dict[str, Callable[[], Calculation]] = {
    "dis": lambda: _on_grey(_own("DISOpticalFlow_create")(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM).calc),
    "dis-fast": lambda: _on_grey(_own("DISOpticalFlow_create")(cv2.DISOPTICAL_FLOW_PRESET_FAST).calc),
    "farneback": lambda: _on_grey(_own("FarnebackOpticalFlow_create")().calc),
    "deepflow": lambda: _on_grey(_contrib("optflow", "createOptFlow_DeepFlow")().calc),
    "pcaflow": lambda: _on_color(_contrib("optflow", "createOptFlow_PCAFlow")().calc),
    "tvl1": lambda: _on_grey(_contrib("optflow", "createOptFlow_DualTVL1")().calc),
    "sparse-to-dense": lambda: _on_color(_contrib("optflow", "createOptFlow_SparseToDense")().calc),
    "rlof": lambda: _on_color(_contrib("optflow", "createOptFlow_DenseRLOF")().calc),
}

#: Least sides of images in pixels, by trial with OpenCV 5.0: on smaller ones it may end the process or run forever.
#: ``sparse-to-dense`` and ``rlof`` do so where few of their tracks agree, as few do on any pair of small images.
SMALLEST = {"orb": 2, "akaze": 2, "dis": 16, "dis-fast": 32, "pcaflow": 64, "sparse-to-dense": 128, "rlof": 128}


def _check_size(method: str, image: np.ndarray) -> None:
    height, width = image.shape[:2]
    smallest = SMALLEST.get(method, 1)
    if min(height, width) < smallest:
        raise DeepMatchingError(
            f"OpenCV's {method} needs images of {smallest} x {smallest} pixels or more, not {width} x {height}; "
            "leave the pair out or choose another method."
        )


def _describe(detector: Any, grey: np.ndarray) -> tuple[np.ndarray, Any]:
    """Keypoints (N, 2) float32 and their descriptors (N, D)."""
    keypoints, descriptors = detector.detectAndCompute(grey, None)
    return np.array([keypoint.pt for keypoint in keypoints], np.float32).reshape(-1, 2), descriptors


def _pixels(image: ImageLike, name: str) -> np.ndarray:
    """uint8 BGR (H, W, 3)."""
    planes: Tensor = load_image(image, name).detach().cpu()
    pixels = (planes.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).flip(2).numpy()
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _greys(image0: ImageLike, image1: ImageLike) -> tuple[np.ndarray, np.ndarray]:
    pixels = _pixels(image0, "image0"), _pixels(image1, "image1")
    grey0, grey1 = (cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) for image in pixels)
    return grey0, grey1
