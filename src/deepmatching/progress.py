"""Telling how far one long computation is, to whoever listens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Gets what is counted, such as "strip", how many are begun, and how many there are.
Listener = Callable[[str, int, int], object]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a function hear what the block tells, in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(counted: str, number: int, total: int) -> None:
    """Tell that this one of ``total`` begins; without a listener, do nothing."""
    if (listener := _listener.get()) is not None:
        listener(counted, number, total)
