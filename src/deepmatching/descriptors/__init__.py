"""Descriptors (D): they turn an image into the cells or vectors that correlation compares."""

from deepmatching.descriptors.base import Descriptor
from deepmatching.descriptors.compact import Compact
from deepmatching.descriptors.hog import HOG
from deepmatching.descriptors.vgg import VGG

__all__ = ["HOG", "VGG", "Compact", "Descriptor"]
