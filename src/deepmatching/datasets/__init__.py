"""Data sets of image pairs with known displacements, and the generator of synthetic ones."""

from deepmatching.datasets.base import Pair

__all__ = ["Pair"]
