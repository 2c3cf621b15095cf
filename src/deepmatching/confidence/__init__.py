"""How far a match can be trusted: the network that judges what the matching says about it."""

from deepmatching.confidence.network import ConfidenceNetwork

__all__ = ["ConfidenceNetwork"]
