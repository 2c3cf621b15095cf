"""Pictures of evaluated pairs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from deepmatching.data.datasets.pairs import Pair
from deepmatching.drawing import write_image
from deepmatching.drawing.errors import draw_flow_errors, draw_match_errors
from deepmatching.evaluation.results import PairResult


def draw_pair(folder: Path, pair: Pair, result: PairResult, shown: Any) -> None:
    """Write a picture of one pair: its matches or flow, the ground truth, and the error.

    ``pair``, ``result`` and ``shown`` are what ``on_pair`` receives, see :mod:`deepmatching.evaluation.running`.
    """
    metrics, truth = result.metrics["all"], pair.flow.numpy()
    caption = f"{result.group} {result.name}: "
    if isinstance(shown, tuple):
        matches, field = shown
        accuracies = " / ".join(f"{metrics[name]:.1f}" for name in ("acc@2", "acc@5", "acc@10"))
        caption += f"acc@2/5/10 {accuracies} %, EPE of the matches {metrics['epe']:.2f} px"
        confidence = None if matches.confidence is None else matches.confidence.cpu().numpy()
        picture = draw_match_errors(pair.image0, pair.image1, matches.numpy(), field, truth, caption, confidence)
    else:
        caption += f"EPE {metrics['epe']:.2f} px, {metrics['err@3']:.1f} % off by more than 3 px"
        picture = draw_flow_errors(pair.image0, shown, truth, caption)
    name = re.sub(r"[^\w.-]+", "_", f"{result.index:05d}_{result.group}_{result.name}")
    write_image(folder / f"{name}.jpg", picture)
