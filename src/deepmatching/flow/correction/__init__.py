"""The dense stage: a network from matches to flow, trained on the error of the flow."""

from deepmatching.flow.correction.dense_network import DenseFlow, DenseNetwork, InitialFlow

__all__ = ["DenseFlow", "DenseNetwork", "InitialFlow"]
