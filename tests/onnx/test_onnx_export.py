"""ONNX files: the forms of the operators, and what onnxruntime makes of them."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import deepmatching as dm
from deepmatching.drawing import to_uint8_rgb, write_image
from deepmatching.io.images import load_image
from deepmatching.io.matches import from_corners
from deepmatching.kernels.registry import plain_operators
from deepmatching.models import load_network
from deepmatching.network.network import Network
from deepmatching.onnx import OPSET, export_descriptor, export_network
from deepmatching.onnx.exported import Exported, ExportedDescriptor, ExportedNetwork
from helpers.pages import ROOT, blocks

SIZE = (51, 72)  #: not a multiple of 8: the last rows are not used


@pytest.fixture(scope="module")
def photographs() -> tuple[Tensor, Tensor]:
    """Return the two frames that ship with the package, (1, 3, 480, 640)."""
    folder = files("deepmatching") / "data" / "demo"
    return load_image(str(folder / "bunny_0.jpg"))[None], load_image(str(folder / "bunny_1.jpg"))[None]


def cut(photographs: tuple[Tensor, Tensor], corner: tuple[int, int], size: tuple[int, int]) -> list[Tensor]:
    (y, x), (rows, columns) = corner, size
    return [image[:, :, y : y + rows, x : x + columns].contiguous() for image in photographs]


def check_equal_but_for_ties(exported: Exported, network: Network, images: list[Tensor]) -> None:
    """Require the same scores, and the same matches wherever PyTorch's best score is clearly above its second-best."""
    with torch.no_grad():
        expected = network.decode(*images)
        Q_0 = network(*images).Q[0].flatten(-2)[0]
    scores = expected.scores.flatten()
    torch.testing.assert_close(exported.scores, scores, atol=1e-4, rtol=0)
    best, second = Q_0.flatten(0, 1).topk(2).values.unbind(1)
    clear = best - second > 1e-4
    assert clear.float().mean() > 0.9
    points1 = from_corners(expected.points1).view(-1, 2)
    torch.testing.assert_close(exported.keypoints0, from_corners(expected.points0).view(-1, 2))
    torch.testing.assert_close(exported.keypoints1[clear], points1[clear], atol=1e-3, rtol=0)
    if clear.all():
        assert torch.equal(exported.verified, expected.verified.flatten())
    if expected.confidence is None:
        assert exported.confidence is None
    else:
        assert exported.confidence is not None
        torch.testing.assert_close(exported.confidence[clear], expected.confidence.flatten()[clear], atol=1e-3, rtol=0)


@pytest.mark.parametrize(("model", "radius", "size"), [
    ("compact", 16, (100, 140)),
    ("compact", 22, (100, 140)),
    ("compact", None, (48, 64)),
    ("hog", 16, (64, 139)),
    ("hog", None, (50, 76)),
    ("vgg", 6, (64, 72)),
])  # fmt: skip
def test_the_forms_of_the_operators_give_the_matches_of_the_network(
    model: str, radius: int | None, size: tuple[int, int], photographs: tuple[Tensor, Tensor]
) -> None:
    network, images = load_network(model, radius).eval(), cut(photographs, (150, 250), size)
    with torch.no_grad(), plain_operators():
        exported = ExportedNetwork(network, size)(*images)
    check_equal_but_for_ties(exported, network, images)


@pytest.mark.parametrize("model", ["compact", "hog", "vgg"])
def test_the_form_of_a_descriptor_gives_its_cells(model: str, photographs: tuple[Tensor, Tensor]) -> None:
    descriptor = load_network(model).descriptor
    image = cut(photographs, (10, 20), (51, 68))[0]
    with torch.no_grad(), plain_operators():
        torch.testing.assert_close(ExportedDescriptor(descriptor)(image), descriptor(image[:, :, :48, :64]))


# ---------------------------------------------------------------------- onnxruntime


@pytest.fixture(scope="module")
def exported_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript")
    path = tmp_path_factory.mktemp("onnx") / "compact.onnx"
    summary = export_network(load_network("compact", 16), path, SIZE, model="compact", license="Apache-2.0")
    points = SIZE[0] // 8 * (SIZE[1] // 8)
    assert summary.opset == OPSET
    assert summary.inputs == dict.fromkeys(("image0", "image1"), f"(1, 3, {SIZE[0]}, {SIZE[1]})")
    assert summary.outputs["keypoints1"] == f"({points}, 2)" and summary.outputs["confidence"] == f"({points},)"
    assert {"Conv", "ScatterElements", "Pow"} <= set(summary.operators)
    return path


@pytest.mark.slow
def test_the_file_names_its_model_and_needs_no_operator_that_tensorrt_lacks(exported_file: Path) -> None:
    onnx: Any = pytest.importorskip("onnx")
    model = onnx.load(exported_file)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert properties == {"model": "compact", "license": "Apache-2.0", "radius": "16", "version": dm.__version__}
    assert all(node.domain == "" for node in model.graph.node) and not model.functions
    assert not [node for node in model.graph.node if node.op_type == "MaxPool"]  # with indices, TensorRT refuses it


def run(path: Path, **inputs: Tensor) -> dict[str, Tensor]:
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path)
    values = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    return {output.name: torch.from_numpy(v) for output, v in zip(session.get_outputs(), values, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("corner", [(150, 250), (0, 0), (400, 500)])
def test_onnxruntime_finds_the_matches_of_the_network(
    exported_file: Path, photographs: tuple[Tensor, Tensor], corner: tuple[int, int]
) -> None:
    images = cut(photographs, corner, SIZE)
    exported = Exported(**run(exported_file, image0=images[0], image1=images[1]))
    check_equal_but_for_ties(exported, load_network("compact", 16).eval(), images)


@pytest.mark.slow
def test_the_program_of_the_page_about_onnx_prints_matches_without_pytorch(
    exported_file: Path, photographs: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    (program,) = blocks(ROOT / "docs" / "onnx.md", "python")
    for name, image in zip("ab", cut(photographs, (150, 250), SIZE), strict=True):
        write_image(tmp_path / f"{name}.png", to_uint8_rgb(image[0]))
    (tmp_path / "compact.onnx").write_bytes(exported_file.read_bytes())
    program += "import sys\nassert kept.any() and not {'torch', 'deepmatching'} & set(sys.modules)\n"
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.slow
def test_an_exported_descriptor_takes_images_of_any_size(tmp_path: Path, photographs: tuple[Tensor, Tensor]) -> None:
    pytest.importorskip("onnxscript")
    network = load_network("hog")
    summary = export_descriptor(network, tmp_path / "descriptor.onnx")
    assert summary.inputs == {"image": "(1, 3, rows, columns)"}
    for size in ((8, 8), (48, 64), (75, 131)):
        image = cut(photographs, (20, 30), size)[0]
        rows, columns = (side // 8 * 8 for side in size)
        with torch.no_grad():
            expected = network.descriptor(image[:, :, :rows, :columns])
        torch.testing.assert_close(run(tmp_path / "descriptor.onnx", image=image)["cells"], expected, atol=1e-5, rtol=0)
