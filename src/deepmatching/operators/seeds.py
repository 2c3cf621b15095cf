"""Matches as seeds: the pixels that belong to each seed, and its nearest other seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: For each cell: where its neighbours begin (S + 1,), then all neighbours (E,) and the distances to them (E,).
Graph = tuple[np.ndarray, np.ndarray, np.ndarray]


class Cells(NamedTuple):
    """Every pixel belongs to its nearest seed."""

    label: np.ndarray  #: (H, W) int32, the nearest of S seeds
    graph: Graph  #: the adjacent cells


class Neighbours(NamedTuple):
    """The K nearest seeds of each seed."""

    seeds: np.ndarray  #: (S, K) int32, nearest first, itself among them; −1 beyond the last
    distances: np.ndarray  #: (S, K) float32; ∞ beyond the last
