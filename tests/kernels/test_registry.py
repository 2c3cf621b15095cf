"""The one door to the kernels: what is registered, and which implementation runs."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from deepmatching.flow import operators as flow_operators
from deepmatching.flow.operators.geodesic import distance_transform, nearest_seeds
from deepmatching.flow.operators.local_models import weighted_means
from deepmatching.flow.operators.refinement_step import refinement_step, warp
from deepmatching.flow.operators.saliency import saliency
from deepmatching.kernels import cpu
from deepmatching.kernels.registry import OPERATORS, has_kernels, plain_operators
from deepmatching.network import operators as network_operators
from deepmatching.network.descriptors import HOG
from deepmatching.network.descriptors.hog import hog_cells
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.operators import fused, power, unpooling
from deepmatching.network.operators.decoding import decode_pooled
from helpers.volumes import blobs


def test_every_operator_has_a_kernel_of_its_name_and_signature_and_nothing_else_is_public(gpu: ModuleType) -> None:
    for package in (network_operators, flow_operators):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    assert set(OPERATORS) == {*cpu.__all__, *gpu.__all__}
    for device, package in (("cpu", cpu), ("cuda", gpu)):
        public = {name for name, value in vars(package).items() if inspect.isfunction(value) and name[0] != "_"}
        assert public == set(package.__all__)
        for name in public:
            kernel, definition = OPERATORS[name].kernel(device), OPERATORS[name].definition
            assert kernel is getattr(package, name) and OPERATORS[name].dtypes[device]
            assert kernel.__name__ == definition.__name__ == name
            signatures = (inspect.signature(function).parameters.values() for function in (kernel, definition))
            ours, expected = ([(p.name, p.default, p.kind) for p in parameters] for parameters in signatures)
            assert ours == expected, name


def test_kernels_take_the_types_they_were_written_for() -> None:
    image, double = torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8, dtype=torch.float64)
    hog = HOG()
    others = (hog.directions, hog.stride, hog.sigmas, hog.slope, hog.ninth)
    assert hog_cells.implementation(image, *others) is cpu.hog_cells
    assert hog_cells.implementation(
        image=image, directions=others[0], stride=2, sigmas=(1, 1, 1), slope=1, ninth=1
    ) is (cpu.hog_cells)
    assert hog_cells.implementation(double, *others) is hog_cells.definition
    assert hog_cells.implementation(image.half(), *others) is hog_cells.definition
    index, weights = torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1, dtype=torch.float64)
    assert weighted_means.implementation(index, weights, weights) is cpu.weighted_means
    assert weighted_means.implementation(index, weights, weights.float()) is weighted_means.definition
    cost, pixels = torch.ones(3, 4), torch.zeros(1, 2, dtype=torch.int64)
    assert distance_transform.implementation(cost, pixels) is cpu.distance_transform
    assert distance_transform.implementation(cost.double(), pixels) is distance_transform.definition
    graph = (torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), torch.zeros(0))
    assert nearest_seeds.implementation(graph, 3) is cpu.nearest_seeds


def test_half_precision_scores_run_the_definition_on_a_cpu() -> None:
    volume, switches = torch.rand(1, 2, 2, 3, 3), torch.zeros(1, 2, 2, 3, 3, dtype=torch.uint8)
    operator: Any = fused.unpool_and_disaggregate
    assert operator.implementation(volume, volume, switches, None, 0) is cpu.unpool_and_disaggregate
    assert operator.implementation(volume, volume.half(), switches, None, 0) is operator.definition


def test_a_kernel_without_a_gradient_does_not_run_where_one_is_needed() -> None:
    image = torch.rand(3, 5, 6, requires_grad=True)
    flow = torch.zeros(2, 5, 6)
    assert warp.implementation(image, image, flow) is warp.definition
    with torch.no_grad():
        assert warp.implementation(image, image, flow) is cpu.warp


def test_kernels_run_where_all_arguments_are_on_a_device_that_has_them_and_are_not_switched_off() -> None:
    scores, image, flow = torch.rand(2, 3), torch.rand(3, 5, 6), torch.zeros(2, 5, 6)
    assert power.implementation(scores, 1.4) is power.definition
    assert power.implementation(scores.to("meta"), 1.4) is power.definition
    assert has_kernels("cpu") and not has_kernels("meta")
    assert warp.implementation(image, image.to("meta"), flow) is warp.definition
    with plain_operators():
        assert not has_kernels("cpu")
        assert warp.implementation(image, image, flow) is warp.definition
    assert has_kernels("cpu") and warp.implementation(image, image, flow) is cpu.warp


def test_an_operator_looks_like_its_definition() -> None:
    for operator in (decode_pooled, refinement_step, saliency, unpooling):
        assert operator.__doc__ == operator.definition.__doc__ and operator.__doc__
        assert inspect.signature(operator) == inspect.signature(operator.definition)


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["ImportError('Numba needs NumPy 2.2 or less')", "OSError('no libllvm')"])
def test_a_numba_that_does_not_work_is_reported_once_and_the_definitions_run(failure: str) -> None:
    code = f"""
import logging, sys, torch
logging.basicConfig(format="%(message)s")
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            raise {failure}
sys.meta_path.insert(0, Broken())
from deepmatching.network.descriptors.hog import hog_cells
from deepmatching.kernels.registry import has_kernels
for _ in range(2):
    assert not has_kernels("cpu") and hog_cells.implementation(torch.rand(1, 1, 8, 8)) is hog_cells.definition
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("Numba cannot be used on this machine") and failure.split("'")[1] in line


@pytest.mark.slow
def test_an_environment_variable_switches_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels, neither Numba nor Triton is loaded."""
    monkeypatch.setenv("DEEPMATCHING_KERNELS", "off")
    program = (
        "import sys, torch\n"
        "from deepmatching.network.descriptors import HOG\n"
        "from deepmatching.kernels.registry import has_kernels\n"
        "HOG()(torch.rand(1, 3, 16, 16))\n"
        "print(has_kernels('cpu'), 'numba' in sys.modules, 'deepmatching.kernels.gpu' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False", "False"]


@pytest.mark.parametrize("reciprocal", ["bins", "exact", "none"])
@pytest.mark.parametrize("radius", [10, 32, None])
@pytest.mark.parametrize("sizes", [((72, 104), (72, 104)), ((97, 80), (64, 112))])
def test_matches_equal_those_of_the_definitions(sizes: Any, radius: int | None, reciprocal: Any) -> None:
    network = Network(HOG(1), radius=radius)
    image0 = blobs(1, 2, 3, *sizes[0])
    shifted = torch.roll(image0, (3, -5), dims=(2, 3))
    image1 = torch.nn.functional.interpolate(shifted, sizes[1], mode="bilinear") * 0.9
    with plain_operators():
        expected = network.decode(image0, image1, Decoding(reciprocal))
    result = network.decode(image0, image1, Decoding(reciprocal))
    assert torch.equal(result.cells, expected.cells)
    assert torch.equal(result.verified, expected.verified)
    assert torch.equal(result.points1, expected.points1)
    assert torch.allclose(result.scores, expected.scores, rtol=1e-5)
