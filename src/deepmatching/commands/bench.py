"""``deepmatching bench``."""

from pathlib import Path
from typing import Any

from deepmatching.commands import options
from deepmatching.commands.messages import print_rows, working
from deepmatching.commands.options import option
from deepmatching.errors import check_number, counted
from deepmatching.settings import RADIUS


@options.command("radius", "device", radius=RADIUS)
def bench(
    *,
    size: str = option("1024x436", "Size of the images, in pixels.", "WIDTHxHEIGHT"),
    model: str = options.NETWORK,
    settings: dict[str, Any],
    batch: int = option(1, "Number of pairs matched at once.", "N"),
    repeats: int = option(20, "Number of timed runs; the median is reported.", "N"),
    threads: int | None = options.THREADS,
    json_file: Path | None = options.JSON,
) -> None:
    """Time matching on this machine, in memory and as a whole program.

    In memory, the time is from image tensors to verified matches, and the peak is above what the process held before.
    The floor is a bound that no implementation can beat on this machine. It is the larger of two times: the bytes that
    must move, at the bandwidth of a large copy; and the operations of correlation, at the rate of a large matrix
    product. Both rates are measured in the same run. The whole program is `deepmatching match` on two files, with
    Python's start and all the memory of its process: the figures to compare with those of other programs.
    """
    import json
    import sys
    from dataclasses import asdict

    import torch

    from deepmatching.evaluation.speed import Case, measure, measure_match
    from deepmatching.io.files import write_file
    from deepmatching.network.memory import amount

    check_number("--batch", batch, minimum=1)
    check_number("--repeats", repeats, minimum=1)
    height, width = options.parse_size(size)
    options.check_outputs([(json_file, options.check_json_suffix)])
    matcher = options.build_matcher(model, settings, threads)
    matcher.plan((height, width), (height, width), batch)  # raises here, in this process, if it does not fit
    radius, device = settings["radius"], str(matcher.device)
    case = Case(model, width, height, radius, device, batch, torch.get_num_threads())
    with working(f"timing {counted(repeats, 'run')} of {size}, radius {radius}"):
        timing = measure(case, repeats)
        program = None if sys.platform == "win32" else measure_match(case)
    bound = "memory" if timing.memory_floor >= timing.arithmetic_floor else "arithmetic"
    used = f", {counted(timing.threads, 'thread')}" if timing.device == "cpu" else ""
    rows = [
        ("device", f"{timing.device}{used}"),
        ("first run", f"{1000 * timing.first:.1f} ms"),
        ("time (median)", f"{1000 * timing.time:.2f} ms"),
        ("time (best)", f"{1000 * timing.best:.2f} ms"),
        ("floor", f"{1000 * timing.floor:.2f} ms ({bound})"),
        ("time / floor", f"{timing.ratio:.1f}"),
        ("peak memory, above the process's", amount(timing.peak)),
    ]
    if program:
        rows.append(("whole program: time", f"{program.time:.2f} s"))
        rows.append(("whole program: peak memory", amount(program.peak)))
    print_rows(rows, to_output=True)
    if json_file:
        whole = {"whole_program": asdict(program)} if program else {}
        write_file(json_file, json.dumps({**timing.as_dict(), **whole}, indent=1))
