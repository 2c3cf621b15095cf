from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from helpers.benchmarks import output_of


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal 9")
def test_a_killed_run_loses_nothing(tmp_path: Path) -> None:
    printed = output_of("bulk_kills", "--driver-kills", 2, "--images", 5, "--json", tmp_path / "tally.json")
    assert "0 finished shards written again (0 after a worker died), 0 with other bytes" in printed
    tally = json.loads((tmp_path / "tally.json").read_text())
    assert tally["driver_kills"] == 2 and tally["runs"] >= 1 and tally["shards"] == 10
