"""Data sets of image pairs with ground truth, and the generator of synthetic pairs."""

from deepmatching.data.datasets.opening import Manifest, open_dataset
from deepmatching.data.datasets.pairs import Entry, FilePairs, Pair
from deepmatching.data.datasets.published import KITTI2012, KITTI2015, FlyingChairs, Sintel, SintelMini

__all__ = [
    "KITTI2012",
    "KITTI2015",
    "Entry",
    "FilePairs",
    "FlyingChairs",
    "Manifest",
    "Pair",
    "Sintel",
    "SintelMini",
    "open_dataset",
]
