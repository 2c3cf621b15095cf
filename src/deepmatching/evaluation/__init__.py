"""Accuracy of matches and flows on a data set, as the paper and the benchmarks measure it."""

from deepmatching.evaluation.metrics import endpoint_metrics, flow_metrics, match_metrics
from deepmatching.evaluation.results import Evaluation, PairResult, Recorder
from deepmatching.evaluation.running import evaluate, evaluate_flow, evaluate_with_flow

__all__ = [
    "Evaluation",
    "PairResult",
    "Recorder",
    "endpoint_metrics",
    "evaluate",
    "evaluate_flow",
    "evaluate_with_flow",
    "flow_metrics",
    "match_metrics",
]
