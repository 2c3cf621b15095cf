"""Writing ONNX files: tracing by ``torch.onnx``, folding of constants, metadata, a summary of what was written."""

import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepmatching import __version__
from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, check_suffix, write_file
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.memory import require_pyramid
from deepmatching.network.network import Network
from deepmatching.onnx.exported import MULTIPLE, Exported, ExportedDescriptor, ExportedNetwork
from deepmatching.settings import FULL

OPSET = 18  #: the version of ONNX's operators: the first in which ``ScatterElements`` can keep the largest


@dataclass(frozen=True)
class Summary:
    """What an ONNX file holds."""

    inputs: dict[str, str]  #: name and shape
    outputs: dict[str, str]
    operators: dict[str, int]  #: how many nodes there are of each operator, in alphabetical order
    opset: int = OPSET


def check_onnx_suffix(path: PathLike) -> None:
    """Raise unless the file is named ``.onnx``."""
    check_suffix(path, [".onnx"], "model")


def export_network(network: Network, path: PathLike, size: tuple[int, int], **card: str) -> Summary:
    """Write the whole network for pairs of images of one size, (rows, columns), with a model card as metadata.

    Inputs ``image0`` and ``image1``: (1, 3, rows, columns) float32, RGB in [0, 1]. Outputs, one row for each reference
    point in raster order: ``keypoints0`` and ``keypoints1`` (N, 2), x and y with pixel centres at integers, ``scores``
    (N,), ``verified`` (N,) bool, and ``confidence`` (N,) if the network judges its matches.
    """
    module = ExportedNetwork(deepcopy(network).cpu(), size)
    with torch.no_grad():
        require_pyramid(network, module.geometry, 1, torch.device("cpu"))
    names = [name for name in Exported._fields if name != "confidence" or network.confidence is not None]
    image = torch.linspace(0, 1, 3 * size[0] * size[1]).view(1, 3, *size)
    examples = [image, image.flip(3)]  # of one tensor given twice, the exporter would make one input
    card["radius"] = FULL if network.radius is None else str(network.radius)
    return _export(module, examples, ["image0", "image1"], names, None, path, card)


def export_descriptor(network: Network, path: PathLike, **card: str) -> Summary:
    """Write the descriptor alone, for images of any size, with a model card as metadata.

    Input ``image``: (1, 3, rows, columns) float32, RGB in [0, 1]; what is beyond a multiple of 8 pixels is cut off.
    Output ``cells``: (1, channels, rows / stride, columns / stride), or one more row and column if the descriptor gives
    one vector for each position, as ``compact`` does.
    """
    module = ExportedDescriptor(deepcopy(network.descriptor).cpu())
    sides = {axis: torch.export.Dim(name, min=MULTIPLE) for axis, name in ((2, "rows"), (3, "columns"))}
    example = torch.linspace(0, 1, 3 * 40 * 56).view(1, 3, 40, 56)
    return _export(module, [example], ["image"], ["cells"], {"image": sides}, path, card)


@torch.no_grad()
def _export(
    module: nn.Module, examples: Sequence[Tensor], inputs: list[str], outputs: list[str],
    dynamic: dict[str, Any] | None, path: PathLike, card: dict[str, str],
) -> Summary:  # fmt: skip
    check_onnx_suffix(path)
    optimizer = load_onnx()
    module.eval()
    with plain_operators(), _quiet():
        module(*examples)  # what operators keep of a geometry must exist before they are traced
        program = torch.onnx.export(
            module,
            tuple(examples),
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=dynamic,
            opset_version=OPSET,
            custom_translation_table={torch.ops.aten.avg_pool2d.default: _mean_pool},
            dynamo=True,
            optimize=False,  # its rewriting takes minutes, and onnxruntime does it again
            verbose=False,
        )
        assert program is not None
        optimizer.fold_constants(program.model)
        optimizer.remove_unused_nodes(program.model)
    program.model.metadata_props.update(card, version=__version__)
    proto = program.model_proto
    write_file(path, proto.SerializeToString())
    return Summary(
        {value.name: _shape(value) for value in proto.graph.input},
        {value.name: _shape(value) for value in proto.graph.output},
        dict(sorted(Counter(n.op_type for n in proto.graph.node if n.op_type != "Constant").items())),
    )


def load_onnx() -> Any:
    """Return what computes the constants of an ONNX graph; raise if onnx is not installed."""
    try:
        from onnxscript import optimizer

        import onnx  # noqa: F401 - PyTorch needs it
    except ImportError:
        raise DeepMatchingError("This needs onnx: install it with pip install onnx onnxscript.") from None
    return optimizer


def _mean_pool(x: Any, kernel_size: Sequence[int], *_: Any, **__: Any) -> Any:
    """Write ``AveragePool`` over 2 × 2, as all networks here pool, the last row and column of an odd map alone.

    Runtimes disagree about the mean there if they round up sizes themselves, so that a border is given, which does not
    count. Where the sides are not known before the map is, they are told to round up.
    """
    from onnxscript import opset18 as op

    sides = list(x.shape[2:])
    if not all(isinstance(side, int) for side in sides):
        return op.AveragePool(x, kernel_shape=list(kernel_size), strides=list(kernel_size), ceil_mode=1)
    border = [0, 0, *(side % 2 for side in sides)]
    return op.AveragePool(x, kernel_shape=list(kernel_size), strides=list(kernel_size), pads=border)


def _shape(value: Any) -> str:
    """Return the shape in words; a side that follows from others is ``…``."""
    sides = [
        (side.dim_param if side.dim_param.isidentifier() else "…") if side.dim_param else str(side.dim_value)
        for side in value.type.tensor_type.shape.dim
    ]
    return f"({', '.join(sides)}{',' * (len(sides) == 1)})"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back PyTorch's remarks about what is not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
