"""``deepmatching evaluate``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepmatching.commands.common import (
    Device,
    Downscale,
    Levels,
    Memory,
    ReciprocalOption,
    build_matcher,
    check_not_inputs,
    refuse,
    say,
)
from deepmatching.defaults import MODEL, RECIPROCAL
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from deepmatching.commands.evaluating import Method


class PassChoice(str, Enum):
    """Sintel's renderings."""

    clean = "clean"
    final = "final"


def evaluate(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET|MANIFEST",
            help="sintel-clean, sintel-final, sintelmini, chairs, kitti2012 (or kitti2012-grey, kitti2012-color), "
            "kitti2015, or a .json list of pairs.",
            show_default=False,
        ),
    ],
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the data set.", show_default=False)
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="train|val|all", help="Of chairs and sintelmini (default: val).", show_default=False),
    ] = None,
    passes: Annotated[
        PassChoice | None, typer.Option("--pass", help="Of sintel and sintelmini (default: clean).", show_default=False)
    ] = None,
    split_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of chairs, if FlyingChairs_train_val.txt is elsewhere.", show_default=False),
    ] = None,
    masks: Annotated[
        bool,
        typer.Option(
            "--masks/--no-masks", help="Figures of visible and occluded pixels, too; leave out what masks call invalid."
        ),
    ] = True,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these 'dataset's of a manifest; may be repeated.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only N pairs, evenly spread.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH", help="compact (the default), vgg, hog, or a .safetensors file.", show_default=False
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of a model, a method of OpenCV: sift, orb, akaze (keypoints); dis, dis-fast, farneback, "
            "deepflow, pcaflow, tvl1, sparse-to-dense, rlof (dense).",
            show_default=False,
        ),
    ] = None,
    flow: Annotated[bool, typer.Option("--flow", help="Evaluate the dense flow, not the matches.")] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of --flow: default (the default), original, sintel, kitti, middlebury.",
            show_default=False,
        ),
    ] = None,
    radius: Annotated[
        str | None,
        typer.Option(
            metavar="PIXELS|full",
            help="Largest displacement along each axis (default: 80, and of --flow 160).",
            show_default=False,
        ),
    ] = None,
    levels: Levels = None,
    downscale: Downscale = None,
    reciprocal: ReciprocalOption = RECIPROCAL,
    half: Annotated[bool, typer.Option("--half", help="Half precision (CUDA only).")] = False,
    memory: Memory = None,
    device: Device = "auto",
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write all figures, pair by pair. An unfinished file is kept: see --resume.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the pairs that the file lacks.")] = False,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A picture of each pair: matches, truth, error.", show_default=False),
    ] = None,
    per_pair: Annotated[bool, typer.Option("--per-pair", help="Print the figures of each pair, too.")] = False,
) -> None:
    """Measure accuracy on pairs with ground truth.

    acc@T: pixels with ground truth, in %, that are off by at most T px. Each
    takes the displacement of the most confident match within 8 px along either
    axis; without one it is wrong. EPE: mean error of the matches themselves in
    px. Means over pairs, as in the paper.

    With --flow, EPE: mean error of all pixels in px. >3px: those that are off by
    more than 3 px, in %. Fl: by more than 3 px and 5 % of the true displacement.
    s0-10, s10-40, s40+: EPE where the true displacement is below 10, 10 to 40,
    above 40 px. Means over pairs, and over the pixels of all pairs together.

    Rows: all pixels with ground truth and, where masks tell, noc: those visible
    in the second image, and occ: those hidden in it.
    """
    from deepmatching.commands.evaluating import describe_method, flow_function, print_table, run_evaluation
    from deepmatching.datasets import open_dataset
    from deepmatching.evaluation.tables import means_table, pairs_table
    from deepmatching.io.files import check_writable, make_folder

    if method is not None:
        if model is not None:
            raise DeepMatchingError("--model and --method exclude each other: leave one out.")
        refuse(
            {
                **{"--radius": radius, "--levels": levels, "--downscale": downscale, "--half": half},
                **{"--memory": memory, "--preset": preset, "--reciprocal": reciprocal != RECIPROCAL},
                "--device": device not in ("auto", "cpu"),
            },
            "has no effect on methods of OpenCV: leave it out.",
        )
    elif preset is not None and not flow:
        raise DeepMatchingError("--preset is for --flow: leave it out.")
    if resume and json_file is None:
        raise DeepMatchingError("--resume goes on with a file of figures: name it with --json FILE.")
    if json_file is not None:
        check_writable(json_file)
        check_not_inputs((json_file,), (Path(dataset),))
    data = open_dataset(
        dataset,
        root,
        split,
        passes=passes.value if passes is not None else None,
        split_file=split_file,
        masks=masks,
    )
    data = data.only(only) if only else data
    data = data.thinned(limit) if limit is not None else data
    radius = radius if radius is not None or flow else "80"
    preset = preset or "default"
    options = {"levels": levels, "downscale": downscale, "reciprocal": reciprocal, "half": half}
    chosen, name = _build(model, method, radius=radius, device=device, memory=memory, **options)
    function = flow_function(chosen, preset) if flow else None  # complains before the work
    if function is not None and method is None:
        chosen = chosen.for_flow()  # type: ignore[union-attr]
    if pictures is not None:
        make_folder(pictures)
    settings = {
        "dataset": dataset if dataset.endswith(".json") else data.name,
        "only": sorted(only or []),
        "limit": limit,
        "masks": masks,
        **({"preset": preset} if flow and method is None else {}),
        **describe_method(chosen, name),
    }
    evaluation = run_evaluation(chosen, data, settings, function, json_file, resume, pictures, title=name)
    title = name if method else f"{name}, radius {settings['radius']}"
    if per_pair:
        print_table(pairs_table(evaluation))
    print_table(means_table(evaluation, title))
    for path in (json_file, pictures):
        if path is not None:
            say(f"wrote {path}")


def _build(model: str | None, method: str | None, **options: Any) -> tuple[Method, str]:
    """The matcher or the baseline, and its name."""
    if method is not None:
        from deepmatching.evaluation.baselines import baseline

        return baseline(method), method
    return build_matcher(model or MODEL, **options), model or MODEL
