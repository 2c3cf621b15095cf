"""Ctrl-C and SIGTERM as a wish that is granted at the end of a step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interruption:
    """Which signal has asked the run to stop, if any; 0 for none."""

    def __init__(self) -> None:
        self.signal = 0

    def __bool__(self) -> bool:
        return bool(self.signal)

    def handle(self, number: int, frame: FrameType | None) -> None:
        # Under torchrun a Ctrl-C arrives twice, from the terminal and from torchrun. Alone, a second one means "now".
        if self.signal == number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise KeyboardInterrupt
        self.signal = number


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Catch the signals while this lasts (in the main thread; elsewhere Python cannot)."""
    wish = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {number: signal.signal(number, wish.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
