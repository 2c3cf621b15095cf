"""The paper: the U-shaped network, its operators, descriptors and losses."""

from deepmatching.network.network import Network, Pyramid

__all__ = ["Network", "Pyramid"]
