from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
import torch

from deepmatching.descriptors import HOG
from deepmatching.errors import OutOfMemoryError
from deepmatching.geometry import Geometry
from deepmatching.memory import amount, budget_for, decoding_bytes, free_bytes, plan_decoding, pyramid_bytes
from deepmatching.network import Network


def test_more_work_needs_more_memory() -> None:
    size = (436, 1024)
    amounts = [decoding_bytes(Geometry(size, size, radius=r), HOG()) for r in (40, 80, 160, None)]
    assert amounts == sorted(amounts)
    assert amounts[3] > 2e9
    pair = Geometry(size, size)
    one, two, three = (decoding_bytes(pair, HOG(), batch) for batch in (1, 2, 3))
    assert one < two and three - two == two - one
    assert pyramid_bytes(pair, HOG(), training=True) > pyramid_bytes(pair, HOG(), training=False)
    assert pyramid_bytes(pair, HOG(), training=False) > 8 * sum(pair.cells(l) for l in range(pair.L + 1))


def test_free_memory_is_at_most_that_of_the_machine() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is not None and 0 < free <= psutil.virtual_memory().total


def test_a_limit_above_the_free_memory_is_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepmatching.memory.free_bytes", lambda device: 1000)
    cpu = torch.device("cpu")
    assert (budget_for(cpu), budget_for(cpu, 600), budget_for(cpu, 5000)) == (800, 600, 1000)


def test_amounts_read_well() -> None:
    assert amount(1_490_000_000) == "1.5 GB"
    assert amount(12_300_000) == "12 MB"


def test_less_memory_means_smaller_pieces() -> None:
    pair = Geometry((436, 1024), (436, 1024), radius=None)
    whole = decoding_bytes(pair, HOG())
    assert (
        plan_decoding(pair, HOG(), 3, "cpu", 4 * whole).batch,
        plan_decoding(pair, HOG(), 3, "cpu", whole).batch,
    ) == (3, 1)
    plans = [plan_decoding(pair, HOG(), 1, "cpu", int(fraction * whole)) for fraction in (1.0, 0.6, 0.5)]
    assert plans[0].strips == 1 < plans[1].strips < plans[2].strips
    assert all(plan.needed <= fraction * whole for plan, fraction in zip(plans, (1.0, 0.6, 0.5), strict=True))
    with pytest.raises(OutOfMemoryError, match="smaller radius"):
        plan_decoding(pair, HOG(), 1, "cpu", whole // 10)


@pytest.mark.slow
@pytest.mark.parametrize("radius", [160, None])
@pytest.mark.parametrize("strips", [1, 5])
def test_predicted_memory_is_close_to_measured_memory(radius: int | None, strips: int) -> None:
    """A process of its own: the peak of matching above what it held before."""
    if not sys.platform.startswith("linux"):
        pytest.skip("peak memory is measured through /proc here")
    for some in (8, None):  # compile the kernels, here rather than there: the compiler takes memory too
        Network(HOG(), some).decode(torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32))
    code = f"""
import torch
from deepmatching.benchmark import demo_images, peak_memory
from deepmatching.descriptors import HOG
from deepmatching.inference import Decoding
from deepmatching.memory import decoding_bytes
from deepmatching.network import Network
network = Network(HOG(), {radius})
images = demo_images(640, 480)
before = peak_memory(torch.device("cpu"))
network.decode(*images, Decoding(strips={strips}))
geometry = network.geometry((480, 640), (480, 640))
print(peak_memory(torch.device("cpu")) - before, decoding_bytes(geometry, HOG(), strips={strips}))
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # every thread takes some memory of its own
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    measured, predicted = map(int, result.stdout.split())
    assert 0.8 * measured < predicted < 1.25 * measured
