"""Shared by all tests: repeatable random numbers, command-line options, the development data, a pair of images."""

import logging
import os
import random
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread in each of the parallel processes, and in those that they start
    os.environ["OMP_NUM_THREADS"] = "1"

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, register_random, settings
from hypothesis.internal.conjecture import providers

from deepmatching.commands import messages
from deepmatching.kernels.first_run import announce_compilation
from helpers.synthetic_pictures import moved_noise

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported, by whichever test is first

pytest_plugins = ["helpers.small_training"]

SHARED = Path(__file__).resolve().parents[2] / "shared"

# A test must not fail by chance or because the machine is busy. By default Hypothesis therefore draws the same examples
# in every run and has no time limits. To look for failures, run the property tests a hundred times on new examples:
# `pytest -m hypothesis --hypothesis-profile=fresh --repeat 100`.
_WITHOUT_TIME_LIMITS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("repeatable", _WITHOUT_TIME_LIMITS, derandomize=True)
settings.register_profile("fresh", _WITHOUT_TIME_LIMITS, derandomize=False)
settings.load_profile("repeatable")
_with_constants_of_modules = getattr(providers, "_get_local_constants", None)  # since Hypothesis 6.131


def _constants_of_modules() -> Any:
    """Return none of the numbers in imported modules: which these are depends on the tests that ran before."""
    return providers._local_constants if settings.default.derandomize else _with_constants_of_modules()


if _with_constants_of_modules is not None:
    providers._get_local_constants = _constants_of_modules


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="seed of the global random generators before each test")
    parser.addoption("--order-seed", type=int, help="repeats the order of a run that printed this number")
    parser.addoption("--repeat", type=int, default=1, help="run each test so often, with seeds that follow --seed")
    parser.addoption("--device", choices=["cpu", "cuda"], default="cpu", help="device of the operators' tests")
    parser.addoption("--dtype", choices=["float32", "float64"], default="float64", help="type of the operators' tests")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the order, or take that of the process that started this one."""
    if config.option.order_seed is None:
        chosen = getattr(config, "workerinput", {}).get("order_seed")
        config.option.order_seed = random.SystemRandom().randrange(1_000_000) if chosen is None else chosen


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist the order: all of them must collect the same tests."""
    node.workerinput["order_seed"] = node.config.option.order_seed


def pytest_sessionstart(session: pytest.Session) -> None:
    if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
        reporter.write_line(f"Random order: --order-seed {session.config.option.order_seed}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the modules and the tests of each; two tests keep their order whichever others run."""
    seed = config.option.order_seed
    items.sort(key=lambda item: [random.Random(f"{seed} {name}").random() for name in (item.location[0], item.nodeid)])


class TorchGenerator:
    """PyTorch's global generator as Hypothesis expects generators to be, which it seeds before each example."""

    base = 0

    def seed(self, seed: int) -> None:
        torch.manual_seed(self.base + seed)

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


TORCH_GENERATOR = TorchGenerator()
register_random(TORCH_GENERATOR)


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    TORCH_GENERATOR.base = seed


def seed_of(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    return item.config.getoption("--seed") + (callspec.params.get("repetition", 0) if callspec else 0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed before the fixtures, those of modules and of the session included."""
    seed_all(seed_of(item))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Seed again: what a test draws does not depend on whether it was the first to use a shared fixture."""
    seed_all(seed_of(item))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat each test as often as --repeat says."""
    if (count := metafunc.config.getoption("--repeat")) > 1:
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(count), indirect=True)


@pytest.fixture
def repetition(request: pytest.FixtureRequest) -> int:
    """Return which of the runs that --repeat asks for this is."""
    return request.param


@pytest.fixture(scope="session", autouse=True)
def _compilation_is_announced() -> None:
    """Announce compilation, so that standard error does not depend on which test compiles a kernel first."""
    announce_compilation()


@pytest.fixture(autouse=True)
def _nothing_is_quiet() -> None:
    """Forget how much the commands of earlier tests were to print: --quiet holds for a process."""
    log = logging.getLogger("deepmatching")
    log.setLevel(logging.NOTSET)
    log.removeHandler(messages._PRINTER)
    messages._is_quiet = messages._is_verbose = False


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """NumPy's generator of one test."""
    return np.random.default_rng(seed_of(request.node))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """Return the device of ``--device``."""
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Return the type of ``--dtype``; gradients are always checked in float64."""
    return getattr(torch, request.config.getoption("--dtype"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of development data; tests that need it are skipped without it."""
    if not (SHARED / "README.md").is_file():
        pytest.skip("the development data (../shared) is not here")
    return SHARED


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    """Two uint8 RGB pictures of 64×96: smooth noise, and the same moved by (+6, −4) pixels."""
    return moved_noise()


@pytest.fixture(scope="session")
def gpu() -> ModuleType:
    """Return the package of GPU kernels."""
    language = pytest.importorskip("triton.language")
    interpreted = type(language.zeros).__name__ == "InterpretedFunction"
    assert torch.cuda.is_available() or interpreted, "Triton was not told to interpret"
    from deepmatching.kernels import gpu

    return gpu


@pytest.fixture(scope="session")
def gpu_device() -> str:
    """Where the Triton kernels run."""
    return "cuda" if torch.cuda.is_available() else "cpu"
