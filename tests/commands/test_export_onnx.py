"""``deepmatching export-onnx``: what it refuses, and a file from start to end."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(("arguments", "words"), [
    ("a.onnx", "--size"),
    ("a.onnx --size big", "1024x436, not 'big'"),
    ("a.txt --size 64x64", "a.txt"),
    ("no/a.onnx --size 64x64", "no"),
    ("a.onnx --descriptor --size 64x64", "--size"),
    ("a.onnx --descriptor --radius 8", "--radius"),
    ("a.onnx --size 64x64 --model nothing", "nothing"),
    ("a.onnx --size 8x8", "small"),
    ("a.onnx --size 4x64", "patch"),
])  # fmt: skip
def test_what_cannot_be_exported_is_refused(is_refused: Callable[[str, str], None], arguments: str, words: str) -> None:
    pytest.importorskip("onnxscript")
    is_refused(f"export-onnx {arguments}", words)


def test_without_onnx_the_command_says_how_to_install_it(
    is_refused: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    is_refused("export-onnx a.onnx --size 64x64", "pip install onnx")


@pytest.mark.slow
def test_the_command_lists_inputs_outputs_and_operators(tmp_path: Path, command: Callable[..., str]) -> None:
    pytest.importorskip("onnxscript")
    path = tmp_path / "descriptor.onnx"
    said = command("export-onnx", path, "--descriptor")
    assert path.is_file()
    assert "image (1, 3, rows, columns)" in said and "cells (1, 64, " in said
    assert "opset 18" in said and "Conv (8)" in said and f"wrote {path}" in said
