"""The benchmarks as a user runs them: each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run_benchmark(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``benchmarks/NAME.py``; its output and its exit code are the caller's to check."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def output_of(name: str, *arguments: object) -> str:
    """Run ``benchmarks/NAME.py``, which must succeed, and return what it prints."""
    result = run_benchmark(name, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout
