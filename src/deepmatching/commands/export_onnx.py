"""``deepmatching export-onnx``."""

from pathlib import Path
from typing import Any

from deepmatching.commands import messages, options
from deepmatching.commands.messages import say
from deepmatching.commands.options import argument, option
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import RADIUS, radius_in_pixels


@options.command("radius")
def export_onnx(
    output: Path = argument(..., "FILE", "The .onnx file to write."),
    *,
    size: str | None = option(None, "Size of both images, in pixels.", "WIDTHxHEIGHT"),
    settings: dict[str, Any],
    model: str = options.NETWORK,
    descriptor: bool = option(False, "Write the descriptor alone, for images of any size."),
) -> None:
    """Write a model as an ONNX file, for programs without PyTorch.

    Images go in as (1, 3, height, width) float32, RGB from 0 to 1. For each reference point come out its position, its
    match, the score, whether it is verified, and its confidence. The file is for one size; the descriptor alone
    (--descriptor) takes any.
    """
    from deepmatching.models import load_network, model_path, read_model
    from deepmatching.onnx import check_onnx_suffix, export_descriptor, export_network, load_onnx

    if descriptor:
        options.refuse({"size": size, **settings}, "has no effect on the descriptor alone: leave it out.")
    elif size is None:
        raise DeepMatchingError("Give the size of the images, such as --size 1024x436, or --descriptor.")
    sides = None if size is None else options.parse_size(size)
    options.check_outputs([(output, check_onnx_suffix)])
    load_onnx()
    network = load_network(model, radius_in_pixels(settings["radius"] or RADIUS))
    metadata = {"license": "Apache-2.0"} if model == "hog" else read_model(model_path(model))[1]
    card: dict[str, str] = {key: metadata[key] for key in ("title", "license", "initialisation") if key in metadata}
    card["model"] = Path(model).name
    with messages.working("exporting"):
        if sides is None:
            summary = export_descriptor(network, output, **card)
        else:
            summary = export_network(network, output, sides, **card)
    for kind, values in (("in", summary.inputs), ("out", summary.outputs)):
        say(f"{kind}: " + ", ".join(f"{name} {shape}" for name, shape in values.items()))
    operators = ", ".join(f"{name} ({count})" for name, count in summary.operators.items())
    say(f"opset {summary.opset}; operators: {operators}")
    messages.say_written(output)
