from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.benchmarks import output_of
from helpers.fake_datasets import write_pairs


@pytest.mark.slow
def test_weights_are_fitted_and_each_data_set_is_left_out_once(tmp_path: Path) -> None:
    manifest = write_pairs(tmp_path, 2)
    entries = json.loads(manifest.read_text())
    names = ["first [/bold]", "second"]  # not markup
    manifest.write_text(json.dumps([{**entry, "dataset": name} for entry, name in zip(entries, names, strict=True)]))
    printed = output_of("confidence", manifest, "--radius", 16)
    assert "fitted to all" in printed
    assert all(printed.count(name) >= 2 for name in names)  # left out of the fit, and measured
