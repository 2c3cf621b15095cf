"""What C libraries print to standard error."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from deepmatching.io.decoder_messages import catch_messages, with_messages


def printing(text: bytes) -> int:
    return os.write(2, text)


@pytest.fixture
def caught() -> Iterator[None]:
    catch_messages()
    yield
    catch_messages(False)


@pytest.mark.usefixtures("caught")
def test_lines_printed_past_python_are_caught_and_later_ones_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    assert with_messages(lambda: printing(b"odd\nodder\n")) == (10, ["odd", "odder"])
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


@pytest.mark.usefixtures("caught")
def test_an_error_of_the_decoder_passes_and_standard_error_comes_back(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        with_messages(fail)
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


@pytest.mark.usefixtures("caught")
def test_threads_decode_at_once_and_each_gets_its_own_messages(capfd: pytest.CaptureFixture[str]) -> None:
    together = threading.Barrier(8, timeout=600)
    passed = set[int]()

    def decode(number: int) -> int:
        if number not in passed:  # the first time, all are at work at once
            passed.add(number)
            together.wait()
        if number % 2:
            printing(b"warning %d\n" % number)
        return number

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: with_messages(lambda: decode(number)), range(8)))
    assert found == [(number, [f"warning {number}"] if number % 2 else []) for number in range(8)]
    assert capfd.readouterr().err == ""


def test_the_library_leaves_standard_error_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert with_messages(lambda: printing(b"odd\n")) == (4, [])
    assert capfd.readouterr().err == "odd\n"
