"""How good matches and flows are on a data set, as the paper and the benchmarks measure it."""

from deepmatching.evaluation.figures import flow_figures, flow_metrics, match_figures
from deepmatching.evaluation.results import Evaluation, PairResult
from deepmatching.evaluation.running import Recorder, evaluate, evaluate_flow

__all__ = [
    "Evaluation",
    "PairResult",
    "Recorder",
    "evaluate",
    "evaluate_flow",
    "flow_figures",
    "flow_metrics",
    "match_figures",
]
