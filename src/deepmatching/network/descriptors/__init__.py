"""Descriptors (D): they turn an image into the cells or vectors that correlation compares."""

from deepmatching.network.descriptors.base import Descriptor
from deepmatching.network.descriptors.compact import Compact
from deepmatching.network.descriptors.hog import HOG
from deepmatching.network.descriptors.vgg import VGG

__all__ = ["HOG", "VGG", "Compact", "Descriptor"]
