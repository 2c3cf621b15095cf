"""How far a match can be trusted: what the matching says about it, and the network that judges it."""

from deepmatching.confidence.evidence import gather_evidence
from deepmatching.confidence.network import ConfidenceNetwork

__all__ = ["ConfidenceNetwork", "gather_evidence"]
