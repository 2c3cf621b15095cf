"""The network as a module that can be exported: two images in, matches out; and its descriptor alone."""

from typing import NamedTuple

from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.targets import Decoded, positions
from deepmatching.io.matches import from_corners
from deepmatching.network.descriptors import HOG, Descriptor
from deepmatching.network.network import Network
from deepmatching.network.operators.subpixel import refine_to_subpixel, scores_around
from deepmatching.onnx import forms

#: Sides of the images that are described are multiples of this many pixels: the part beyond is cut off, as in matching.
MULTIPLE = 8


class ExportedDescriptor(nn.Module):
    """φ for images of any size: (1, 3, H, W) in [0, 1] → (1, C, h, w)."""

    def __init__(self, descriptor: Descriptor) -> None:
        super().__init__()
        self.descriptor = descriptor

    def forward(self, image: Tensor) -> Tensor:
        rows, columns = (image.shape[axis] // MULTIPLE * MULTIPLE for axis in (2, 3))
        return self.describe(image[:, :, :rows, :columns])

    def describe(self, image: Tensor) -> Tensor:
        """Return the descriptors of an image whose sides are multiples of ``MULTIPLE``; never in bands of rows."""
        return forms.hog(image, self.descriptor) if isinstance(self.descriptor, HOG) else self.descriptor(image)


class Exported(NamedTuple):
    """What the exported network gives for each of its N reference points, in raster order."""

    keypoints0: Tensor  #: (N, 2), x and y in the first image; pixel centres are integers
    keypoints1: Tensor  #: (N, 2), its match in the second image
    scores: Tensor  #: (N,), −∞ where no path reaches the point
    verified: Tensor  #: (N,) bool
    confidence: Tensor | None = None  #: (N,), the probability that the match is less than 3 pixels off


class ExportedNetwork(nn.Module):
    """Two images of one fixed size, (rows, columns), in; the best match of every reference point out.

    The network must be on the CPU.
    """

    def __init__(self, network: Network, size: tuple[int, int]) -> None:
        super().__init__()
        self.network = network
        self.descriptor = ExportedDescriptor(network.descriptor)
        if not network.is_fusable:
            raise DeepMatchingError("Only hard pooling can be exported: set the network's pooling to 'hard'.")
        self.geometry = network.geometry(size, size)
        if self.geometry.L == 0:
            raise DeepMatchingError(
                f"Images of {size[1]}x{size[0]} pixels are too small to export a network with levels: use larger ones."
            )
        self.exponents = [float(network.exponent(l).detach()) for l in range(self.geometry.L + 1)]
        self.bins = forms.Bins(self.geometry)

    def forward(self, image0: Tensor, image1: Tensor) -> Exported:
        network, geometry = self.network, self.geometry
        rows, columns = geometry.used0
        cells0, cells1 = (self.descriptor.describe(image[:, :, :rows, :columns]) for image in (image0, image1))
        patch, nu = network.descriptor.patch, self.exponents
        decoded = self.decode(cells0, cells1)
        if network.sharpness is not None or network.confidence is not None:
            around = scores_around(decoded, cells0, cells1, geometry, patch, nu[0])
        if network.sharpness is not None:
            decoded = refine_to_subpixel(decoded, around, geometry, network.sharpness)
        points0, points1 = (from_corners(points).view(-1, 2) for points in (decoded.points0, decoded.points1))
        result = Exported(points0, points1, decoded.scores.view(-1), decoded.verified.view(-1))
        if network.confidence is None:
            return result
        logits = network.estimate_confidence(decoded, around, cells0, cells1, geometry)
        return result._replace(confidence=logits[:, 0].sigmoid().view(-1))

    def decode(self, cells0: Tensor, cells1: Tensor) -> Decoded:
        """Return the matches on the cells, of a batch of one pair."""
        geometry, nu = self.geometry, self.exponents
        levels = [forms.correlate_and_pool(cells0, cells1, geometry, self.network.descriptor.patch, nu[0])]
        for l in range(geometry.L - 1):
            scores = forms.aggregation(levels[-1][0], geometry, l, nu[l + 1])
            levels.append(forms.max_pooling(scores, geometry, l + 1))
        top = geometry.L - 1
        Q = forms.disaggregation(forms.aggregation(levels[-1][0], geometry, top, nu[top + 1]), geometry, top)
        for l in reversed(range(top)):
            pooled, switches = levels.pop()
            Q = forms.disaggregation(forms.unpooling(Q + pooled, switches, geometry, l + 1), geometry, l)
        pooled, switches = levels.pop()
        scores, cells, verified = self.bins.decode(Q + pooled, switches)
        return Decoded(*positions(cells, geometry), scores, cells, verified)
