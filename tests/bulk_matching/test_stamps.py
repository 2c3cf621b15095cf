"""Stamps: which changes of a file they notice."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepmatching.bulk_matching import stamps as stamps_module
from deepmatching.bulk_matching.stamps import MISSING, is_unchanged, stamp, stamps


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp"])
def test_other_pixels_in_the_middle_are_noticed(suffix: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)
    path = tmp_path / f"a{suffix}"
    assert stamp(path) == MISSING and is_unchanged(path.name, MISSING, MISSING)
    Image.fromarray(pixels).save(path)
    before = stamp(path)
    assert is_unchanged(path.name, before, stamp(path)) and stamp(path, before) is before
    assert not is_unchanged(path.name, MISSING, before) and not is_unchanged(path.name, before, MISSING)
    pixels[100, 100] += 100
    Image.fromarray(pixels).save(path)
    os.utime(path, ns=(0, 0))
    assert not is_unchanged(path.name, before, stamp(path))


def test_files_are_looked_at_together_and_their_stamps_stay_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{n}.bmp" for n in range(40)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(number))
    expected = [stamp(tmp_path / name) for name in names]
    together = threading.Barrier(3)  # breaks, after a while, unless three threads wait at once
    plain = stamps_module.stamp

    def slow(path: Path, before: str) -> str:
        if path.name in ("0.bmp", "16.bmp", "32.bmp"):
            together.wait(timeout=60)
        return plain(path, before)

    monkeypatch.setattr(stamps_module, "stamp", slow)
    assert stamps(tmp_path, names, expected[:7]) == expected
