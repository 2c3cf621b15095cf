"""Ctrl-C and SIGTERM as a request to stop at the end of the step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interruption:
    """The signal that has asked the run to stop; 0 for none."""

    def __init__(self) -> None:
        self.signal = 0

    def __bool__(self) -> bool:
        return bool(self.signal)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal; a second Ctrl-C stops at once."""
        # Under torchrun every Ctrl-C arrives twice, from the terminal and from torchrun.
        if self.signal == number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise KeyboardInterrupt
        self.signal = number


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Catch SIGINT and SIGTERM while the block lasts."""
    interruption = Interruption()
    with signal_handler(interruption.handle, signal.SIGINT, signal.SIGTERM):
        yield interruption


@contextlib.contextmanager
def signal_handler(handler: Any, *signals: signal.Signals) -> Iterator[None]:
    """Handle these signals while the block lasts. Python allows it in the main thread only; others change nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in signals if is_main}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
