from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.benchmarks import output_of


@pytest.mark.slow
def test_predictions_stand_beside_measurements_with_kernels_and_without(tmp_path: Path) -> None:
    printed = output_of("memory", "--quick", "--json", tmp_path / "memory.json")
    assert printed.count("64x48") == 4 and printed.count("flow") == 1
    rows = json.loads((tmp_path / "memory.json").read_text())
    assert [row["kernels"] for row in rows] == [True, False, True, True]
    assert all(row["predicted"] > 0 and row["measured"] >= 0 for row in rows)
