"""What C libraries print to standard error."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from deepmatching.io.decoder_messages import catch_messages, decoder_messages


@pytest.fixture
def caught() -> Iterator[None]:
    catch_messages()
    yield
    catch_messages(False)


@pytest.mark.usefixtures("caught")
def test_lines_printed_past_python_are_caught_and_later_ones_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    with decoder_messages() as messages:
        os.write(2, b"odd\nodder\n")
    os.write(2, b"after\n")
    assert messages == ["odd", "odder"]
    assert capfd.readouterr().err == "after\n"


@pytest.mark.usefixtures("caught")
def test_an_error_in_the_block_passes_and_standard_error_comes_back(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="mine"), decoder_messages():
        raise OSError("mine")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_the_library_leaves_standard_error_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with decoder_messages() as messages:
        os.write(2, b"odd\n")
    assert messages == []
    assert capfd.readouterr().err == "odd\n"
