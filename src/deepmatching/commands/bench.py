"""``deepmatching bench``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from deepmatching.commands.common import Device, Model, Radius, ReciprocalChoice, build_matcher
from deepmatching.defaults import MODEL, RADIUS
from deepmatching.errors import DeepMatchingError


def bench(
    size: Annotated[str, typer.Option(metavar="WIDTHxHEIGHT", help="Size of the pictures.")] = "1024x436",
    model: Model = MODEL,
    radius: Radius = "80",
    device: Device = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Pairs at a time.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs; the median counts.")] = 20,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures.", show_default=False)
    ] = None,
) -> None:
    """Time matching on this machine, from image tensors to verified matches.

    The floor is what no implementation can go below here: the larger of the bytes that must move over the bandwidth of
    a copy and the operations of correlation over the rate of a matrix product, both measured in the same run.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from deepmatching.benchmark import Case, measure
    from deepmatching.io.files import atomic_write, check_writable
    from deepmatching.memory import amount

    parsed = re.fullmatch(r"(\d+)x(\d+)", size)
    if not parsed:
        raise DeepMatchingError(f"--size needs a width and a height such as 1024x436, not '{size}'.")
    if json_file:
        check_writable(json_file)
    matcher = build_matcher(model, radius, None, None, ReciprocalChoice.bins, device)
    width, height = int(parsed[1]), int(parsed[2])
    matcher.plan((height, width), (height, width), batch)
    case = Case(model, width, height, matcher.settings.radius or RADIUS, "bins", str(matcher.device), batch)
    with Console(stderr=True).status(f"timing {repeats} runs of {size}, radius {radius} …"):
        timing = measure(case, repeats)
    table = Table("", "value", show_header=False)
    for name, value in (
        ("device", f"{timing.device}, {timing.threads} threads" if timing.device == "cpu" else timing.device),
        ("first run", f"{1000 * timing.first:.1f} ms"),
        ("time (median)", f"{1000 * timing.time:.2f} ms"),
        ("time (best)", f"{1000 * timing.best:.2f} ms"),
        ("floor", f"{1000 * timing.floor:.2f} ms ({'memory' if timing.is_memory_bound else 'arithmetic'})"),
        ("time / floor", f"{timing.ratio:.1f}"),
        ("peak memory", amount(timing.peak)),
    ):
        table.add_row(name, value)
    Console().print(table)
    if json_file:
        with atomic_write(json_file) as temporary:
            temporary.write_text(json.dumps(timing.as_dict(), indent=1))
