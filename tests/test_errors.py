"""Failed allocations, by whichever library reports them."""

import errno
import subprocess
import sys
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError, OutOfMemoryError, counted, failed_allocations, is_out_of_memory

TOO_LARGE = 2**58


def test_what_the_libraries_raise_for_a_huge_array_is_recognised() -> None:
    """Real failures, not only messages that are known today."""
    empty = partial(torch.empty, dtype=torch.uint8), partial(np.empty, dtype=np.uint8), bytearray
    for allocate in (partial(make, TOO_LARGE) for make in empty):
        with pytest.raises((RuntimeError, MemoryError)) as failure:
            allocate()
        assert is_out_of_memory(failure.value), failure.value
        with pytest.raises(OutOfMemoryError), failed_allocations():
            allocate()


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        SystemError("error return without exception set"),
        cv2.error("OpenCV(4.10.0) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 8 bytes"),
    ],
    ids=str,
)
def test_messages_of_failed_allocations_are_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)


OTHERS = (
    RuntimeError("a shape is wrong"),
    ValueError("not enough memory"),
    OSError(errno.ENOENT, "no file"),
    KeyError(1),
)


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)) as same, failed_allocations():
        raise error
    assert same.value is error


def test_a_failed_allocation_is_recognised_as_the_cause_of_another_error() -> None:
    """llvmlite says only that its library cannot be loaded."""
    error = OSError("Could not find/load shared object file 'libllvmlite.so'")
    assert not is_out_of_memory(error)
    error.__cause__ = OSError("libllvmlite.so: failed to map segment from shared object")
    assert is_out_of_memory(error)


@pytest.mark.parametrize("has_leftovers", [False, True])
def test_a_missing_or_incomplete_opencv_is_one_sentence(tmp_path: Path, has_leftovers: bool) -> None:
    """Packages of OpenCV overwrite one another; uninstalling one of them leaves none, or some files."""
    (tmp_path / "cv2").mkdir()
    (tmp_path / "cv2" / "__init__.py").write_text("" if has_leftovers else "raise ImportError('no', name='cv2')")
    calls = {
        "from deepmatching.cli import main; sys.argv = ['deepmatching', 'match', 'a.png', 'b.png']; main()": 2,
        "import deepmatching; deepmatching.DeepMatcher": 1,
    }
    for code, expected in calls.items():
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert result.returncode == expected
        assert "OpenCV is missing or incomplete (" in result.stderr.splitlines()[-1]
        assert "Traceback" not in result.stderr or expected == 1


def test_a_refusal_before_the_work_keeps_its_own_sentence() -> None:
    with pytest.raises(DeepMatchingError, match=r"^its own$"), failed_allocations():
        raise OutOfMemoryError("its own")


def test_one_thing_is_counted_in_the_singular() -> None:
    assert [counted(number, "match") for number in (0, 1, 2)] == ["0 matches", "1 match", "2 matches"]
    assert [counted(number, "level") for number in (0, 1, 2)] == ["0 levels", "1 level", "2 levels"]
