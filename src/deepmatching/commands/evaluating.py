"""What ``evaluate`` and ``reproduce`` share: running an evaluation with a progress bar, its file and its pictures."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepmatching.commands.common import build_matcher, say
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from deepmatching.datasets import FilePairs, Pair
    from deepmatching.evaluation import Evaluation, PairResult
    from deepmatching.evaluation.baselines import DenseMethod, KeypointMatcher
    from deepmatching.evaluation.running import FlowFunction
    from deepmatching.matcher import DeepMatcher

    Method = DeepMatcher | KeypointMatcher | DenseMethod


def run_evaluation(
    method: Method,
    dataset: FilePairs,
    settings: dict[str, Any],
    function: FlowFunction | None = None,
    json_file: Path | None = None,
    resume: bool = False,
    pictures: Path | None = None,
    title: str = "evaluating",
    hint: str = "go on with --resume",
) -> Evaluation:
    """Evaluate with a progress bar; what is done by then is kept in the file, however it ends.

    ``function`` gives the flow that is evaluated; without it, the matches are. ``hint`` is what a user whom something
    stopped is told to do. Pairs that are left out since none of their ground truth is known are named.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from deepmatching.evaluation import Evaluation, Recorder, evaluate, evaluate_flow
    from deepmatching.evaluation.running import naming_pair
    from deepmatching.matcher import DeepMatcher

    contents = "\n".join(f"{entry.group} {entry.name}" for entry in dataset.entries)
    settings = {**settings, "contents": hashlib.sha256(contents.encode()).hexdigest()[:16]}
    empty = Evaluation("matches" if function is None else "flow", settings, len(dataset))
    recorder = Recorder(empty, json_file, resume)
    before = len(recorder.done)
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[pair]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = progress.add_task(title, total=len(dataset), completed=before, pair="")

    def on_pair(pair: Pair, result: PairResult, shown: Any) -> None:
        if pictures is not None:
            draw_pair(pictures, pair, result, shown)
        progress.update(task, advance=1, pair=f"{result.group} {result.name}")

    try:
        with recorder, progress:
            if isinstance(method, DeepMatcher) and before < len(dataset):
                with naming_pair(dataset, 0):
                    first = dataset[0]  # kernels are compiled now, and no pair's time has it
                    (function or method.match)(first.image0, first.image1)
            if function is not None:
                evaluation = evaluate_flow(function, dataset, recorder, on_pair)
            else:
                evaluation = evaluate(method, dataset, recorder, on_pair)
    except BaseException as error:
        kept = len(recorder.evaluation.pairs)
        if json_file is not None and kept > before:
            before_that = "put right what follows, then " if isinstance(error, DeepMatchingError) else ""
            say(f"{kept} of {len(dataset)} pairs are kept in {json_file}: {before_that}{hint}")
        raise
    done = recorder.done
    unknown = [entry.name for index, entry in enumerate(dataset.entries) if index not in done]
    if unknown:
        named = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        say(f"no ground truth is known of {len(unknown)} of {len(dataset)} pairs, which are left out: {named}")
    return evaluation


def print_table(table: Table) -> None:
    """Print to standard output, never cut: a line that is too long for the terminal is wrapped by it."""
    from rich.console import Console

    console = Console()
    needed = console.measure(table, options=console.options.update(width=1000)).maximum
    console.width = max(console.width, needed)
    console.print(table)


def published_vgg(source: str, radius: str, device: str) -> DeepMatcher | None:
    """The paper's CNN as it is: the matcher of VGG-16's published weights; None if the source is something else."""
    from deepmatching.descriptors import VGG
    from deepmatching.descriptors.pretrained import is_published, load_vgg
    from deepmatching.matcher import DeepMatcher
    from deepmatching.models import NAMES, build_network

    if source in NAMES or not is_published(source):
        return None
    like = build_matcher("hog", radius=radius, device=device)
    network = build_network("vgg", like.network.radius)
    assert isinstance(network.descriptor, VGG)
    load_vgg(network.descriptor, source)
    return DeepMatcher(network, like.settings)


def flow_function(method: Method, preset: str = "default") -> FlowFunction:
    """The dense flow of a method as a function of two images; the preset is for ours."""
    from deepmatching.flow import preset as settings_of
    from deepmatching.matcher import DeepMatcher

    calculate: Any = getattr(method, "flow", None)
    if calculate is None:
        raise DeepMatchingError("--flow needs a method that gives a dense flow: use --method dis, say.")

    options: dict[str, Any] = {}
    if isinstance(method, DeepMatcher):
        options["preset"] = settings_of(preset)

    def function(image0: Any, image1: Any) -> np.ndarray:
        import torch

        result = calculate(image0, image1, **options)
        field = getattr(result, "flow", result)  # with its confidence, or as it is
        return field.detach().cpu().numpy() if isinstance(field, torch.Tensor) else field

    return function


def describe_method(method: Method, name: str) -> dict[str, Any]:
    """What the figures of a method depend on, as JSON can hold it."""
    from deepmatching.matcher import DeepMatcher
    from deepmatching.models import model_path

    if not isinstance(method, DeepMatcher):
        return {"method": name}
    described = {"model": name}
    if name not in ("hog", "download"):  # a model may be trained further under the same name
        described["sha256"] = hashlib.sha256(model_path(name).read_bytes()).hexdigest()[:16]
    indifferent = ("device", "memory")  # to the result
    settings = {f.name: getattr(method.settings, f.name) for f in fields(method.settings)}
    return {**described, **{name: value for name, value in settings.items() if name not in indifferent}}


def draw_pair(folder: Path, pair: Pair, result: PairResult, shown: Any) -> None:
    """A picture of one pair: its matches or flow, the truth, and the error."""
    from deepmatching.drawing import write_image
    from deepmatching.drawing.errors import draw_flow_errors, draw_match_errors

    figures, truth = result.figures["all"], pair.flow.numpy()
    caption = f"{result.group} {result.name}: "
    if isinstance(shown, tuple):
        matches, field = shown
        shares = " / ".join(f"{figures[name]:.1f}" for name in ("acc@2", "acc@5", "acc@10"))
        caption += f"acc@2/5/10 {shares} %, EPE of the matches {figures['epe']:.2f} px"
        picture = draw_match_errors(pair.image0, pair.image1, matches.numpy(), field, truth, caption)
    else:
        caption += f"EPE {figures['epe']:.2f} px, {figures['err@3']:.1f} % off by more than 3 px"
        picture = draw_flow_errors(pair.image0, shown, truth, caption)
    name = re.sub(r"[^\w.-]+", "_", f"{result.index:05d}_{result.group}_{result.name}")
    write_image(folder / f"{name}.jpg", picture)
