"""The benchmarks as a user runs them: each in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def run_benchmark(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``benchmarks/NAME.py``; its output and its exit code are the caller's to check."""
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *map(str, arguments)]
    paths = os.pathsep.join([str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}  # benchmarks/edges.py uses the tools
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def output_of(name: str, *arguments: object) -> str:
    """Run ``benchmarks/NAME.py``, which must succeed, and return what it prints."""
    result = run_benchmark(name, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def imported(name: str) -> ModuleType:
    """Import ``benchmarks/NAME.py`` as a module."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
