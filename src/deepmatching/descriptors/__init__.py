"""Descriptors (D): from an image to the cells or vectors that correlation compares."""

from deepmatching.descriptors.base import Descriptor
from deepmatching.descriptors.hog import HOG

__all__ = ["HOG", "Descriptor"]
