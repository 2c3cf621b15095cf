"""``deepmatching export-onnx``: what it refuses, and a file from start to end."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_command_lists_inputs_outputs_and_operators(tmp_path: Path, command: Callable[..., str]) -> None:
    pytest.importorskip("onnxscript")
    path = tmp_path / "descriptor.onnx"
    said = command("export-onnx", path, "--descriptor")
    assert path.is_file()
    assert "image (1, 3, rows, columns)" in said and "cells (1, 64, " in said
    assert "opset 18" in said and "Conv (8)" in said and f"wrote {path}" in said
