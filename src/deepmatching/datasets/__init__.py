"""Data sets of image pairs with ground truth, and the generator of synthetic pairs."""

from deepmatching.datasets.base import Pair
from deepmatching.datasets.chairs import FlyingChairs
from deepmatching.datasets.kitti import KITTI2012, KITTI2015
from deepmatching.datasets.manifest import Manifest
from deepmatching.datasets.opening import open_dataset
from deepmatching.datasets.pairs import Entry, FilePairs
from deepmatching.datasets.sintel import Sintel, SintelMini

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
