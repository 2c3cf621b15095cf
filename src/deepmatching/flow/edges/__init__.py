"""Edge maps: float32 (H, W) in [0, 1], high at the boundaries of objects."""

from deepmatching.flow.edges.detect import detect_edges, edge_strength, gradient_edges
from deepmatching.flow.edges.edge_network import EdgeNetwork, load_edge_network, save_edge_network
from deepmatching.flow.edges.forest import structured_forest_edges
from deepmatching.io.edges import load_edges

__all__ = [
    "EdgeNetwork",
    "detect_edges",
    "edge_strength",
    "gradient_edges",
    "load_edge_network",
    "load_edges",
    "save_edge_network",
    "structured_forest_edges",
]
