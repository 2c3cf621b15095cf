"""Methods of OpenCV to compare with: keypoints (SIFT, ORB, AKAZE) and classical dense flow.

Their methods ``match`` and ``flow`` take image tensors (C, H, W) in [0, 1] with one or three channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import INSTALL_CONTRIB, DeepMatchingError, check_choice
from deepmatching.io.images import shrink, size_of
from deepmatching.matches import Matches
from deepmatching.settings import PROPAGATION_RADIUS


def baseline(name: str) -> "KeypointMatcher | DenseMethod":
    """Return the method of that name, one of :data:`KEYPOINTS` or :data:`DENSE`."""
    check_choice("The method", name, (*KEYPOINTS, *DENSE))
    if name == "sift-8000":
        return KeypointMatcher(name, ratio=0.85, is_mutual=False)
    return KeypointMatcher(name) if name in KEYPOINTS else DenseMethod(name)


@dataclass(frozen=True)
class KeypointMatcher:
    """Matches keypoints whose descriptors are nearest neighbours and pass the ratio test.

    The score is 1 − d₁/d₂, with the distances to the nearest and second nearest descriptor in the other image.
    """

    name: str  #: one of :data:`KEYPOINTS`
    ratio: float = 0.8  #: the largest d₁/d₂ that is a match
    is_mutual: bool = True  #: keep a match only if each is the nearest neighbour of the other

    def __post_init__(self) -> None:
        KEYPOINTS[self.name]()  # raises now if OpenCV lacks it

    def match(self, image0: Tensor, image1: Tensor) -> Matches:
        detector, norm = KEYPOINTS[self.name]()
        (points0, descriptors0), (points1, descriptors1) = (self._describe(detector, i) for i in (image0, image1))
        chosen: list[tuple[int, int, float]] = []
        if len(points0) > 1 and len(points1) > 1:
            comparer = cv2.BFMatcher(norm)
            back = {m[0].queryIdx: m[0].trainIdx for m in comparer.knnMatch(descriptors1, descriptors0, k=1)}
            for nearest, second in comparer.knnMatch(descriptors0, descriptors1, k=2):
                ratio = nearest.distance / max(second.distance, 1e-9)
                if ratio <= self.ratio and (not self.is_mutual or back[nearest.trainIdx] == nearest.queryIdx):
                    chosen.append((nearest.queryIdx, nearest.trainIdx, 1.0 - ratio))
        from0, from1, scores = zip(*chosen, strict=True) if chosen else ((), (), ())
        start, end = map(torch.from_numpy, (points0[np.array(from0, np.int64)], points1[np.array(from1, np.int64)]))
        return Matches(start, end, torch.tensor(scores, dtype=torch.float32), size_of(image0), size_of(image1))

    def _describe(self, detector: Any, image: Tensor) -> tuple[np.ndarray, Any]:
        """Return keypoints (N, 2) float32 and their descriptors (N, D)."""
        grey = cv2.cvtColor(_to_bgr(image), cv2.COLOR_BGR2GRAY)
        _check_size(self.name, grey)
        keypoints, descriptors = detector.detectAndCompute(grey, None)
        return np.array([keypoint.pt for keypoint in keypoints], np.float32).reshape(-1, 2), descriptors


@dataclass(frozen=True)
class DenseMethod:
    """A dense flow method of OpenCV; as a matcher, it gives one match for every pixel."""

    name: str  #: one of :data:`DENSE`

    #: In an evaluation, every pixel takes its own displacement, not that of a neighbour.
    spread = 0

    def __post_init__(self) -> None:
        DENSE[self.name]()

    def flow(self, image0: Tensor, image1: Tensor) -> np.ndarray:
        """Return (H, W, 2) float32. A second image of another size is cropped or padded to the size of the first."""
        first, second = _to_bgr(image0), _to_bgr(image1)
        height, width = first.shape[:2]
        _check_size(self.name, first)
        second = second[:height, :width]
        missing = height - second.shape[0], width - second.shape[1]
        second = cv2.copyMakeBorder(second, 0, missing[0], 0, missing[1], cv2.BORDER_REPLICATE)
        if self.name not in _ON_COLOUR:
            first, second = (cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) for image in (first, second))
        try:
            flow = DENSE[self.name]().calc(first, second, None)
        except cv2.error as error:
            failure = f"fails on a pair of {width} x {height} pixels ({error.err})"
            raise DeepMatchingError(f"OpenCV's {self.name} {failure}; choose another method.") from error
        return np.asarray(flow, np.float32)

    def match(self, image0: Tensor, image1: Tensor) -> Matches:
        flow = self.flow(image0, image1)
        height, width = flow.shape[:2]
        points = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=2).astype(np.float32)
        start, end = (torch.from_numpy(field.reshape(-1, 2)) for field in (points, points + flow))
        return Matches(start, end, torch.ones(len(start)), (height, width), (image1.shape[1], image1.shape[2]))


@dataclass(frozen=True)
class AtReducedSize:
    """Matches larger images at a reduced size, as the setting ``max_size`` does."""

    method: KeypointMatcher | DenseMethod
    max_size: int  #: longer side, in pixels

    @property
    def spread(self) -> float:
        return getattr(self.method, "spread", PROPAGATION_RADIUS)

    def match(self, image0: Tensor, image1: Tensor) -> Matches:
        small = self.method.match(shrink(image0, self.max_size), shrink(image1, self.max_size))
        return small.at_sizes(size_of(image0), size_of(image1))


def _opencv(function: str, module: str = "") -> Callable[..., Any]:
    """Return a function of OpenCV, or of one of its contrib modules, which not every build has."""
    found = getattr(getattr(cv2, module, None) if module else cv2, function, None)
    if found is None:
        raise DeepMatchingError(f"This OpenCV has no {module}.{function}: {INSTALL_CONTRIB}.")
    return found  # type: ignore[no-any-return]


def _akaze() -> tuple[Any, int]:
    create = getattr(cv2, "AKAZE_create", None) or _opencv("AKAZE_create", "xfeatures2d")  # moved in OpenCV 5
    return create(threshold=1e-4), cv2.NORM_HAMMING


#: Detector with its descriptor, and the norm that compares descriptors. The thresholds give thousands of keypoints.
KEYPOINTS: dict[str, Callable[[], tuple[Any, int]]] = {
    "sift": lambda: (_opencv("SIFT_create")(contrastThreshold=0.01), cv2.NORM_L2),
    "sift-8000": lambda: (_opencv("SIFT_create")(8000), cv2.NORM_L2),
    "orb": lambda: (_opencv("ORB_create")(nfeatures=10000), cv2.NORM_HAMMING),
    "akaze": _akaze,
}
#: With OpenCV's own parameters.
DENSE: dict[str, Callable[[], Any]] = {
    "dis": lambda: _opencv("DISOpticalFlow_create")(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM),
    "dis-fast": lambda: _opencv("DISOpticalFlow_create")(cv2.DISOPTICAL_FLOW_PRESET_FAST),
    "farneback": lambda: _opencv("FarnebackOpticalFlow_create")(),
    "deepflow": lambda: _opencv("createOptFlow_DeepFlow", "optflow")(),
    "pcaflow": lambda: _opencv("createOptFlow_PCAFlow", "optflow")(),
    "tvl1": lambda: _opencv("createOptFlow_DualTVL1", "optflow")(),
    "sparse-to-dense": lambda: _opencv("createOptFlow_SparseToDense", "optflow")(),
    "rlof": lambda: _opencv("createOptFlow_DenseRLOF", "optflow")(),
}
#: Methods in :data:`DENSE` that need colour; the others take grey images.
_ON_COLOUR = ("pcaflow", "sparse-to-dense", "rlof")
#: Shortest side of an image in pixels, found by trial with OpenCV 5.0: on smaller images it may crash or never return.
#: ``sparse-to-dense`` and ``rlof`` do so if few of their tracks agree, as on any pair of small images.
MIN_SIDES = {"orb": 2, "akaze": 2, "dis": 16, "dis-fast": 32, "pcaflow": 64, "sparse-to-dense": 128, "rlof": 128}


def _check_size(method: str, image: np.ndarray) -> None:
    height, width = image.shape[:2]
    smallest = MIN_SIDES.get(method, 1)
    if min(height, width) < smallest:
        needed = f"images of {smallest} x {smallest} pixels or more, not {width} x {height}"
        raise DeepMatchingError(f"OpenCV's {method} needs {needed}; choose another method.")


def _to_bgr(image: Tensor) -> np.ndarray:
    """Return uint8 BGR (H, W, 3)."""
    pixels = (image.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).flip(2).numpy()
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
