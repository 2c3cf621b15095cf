"""What happens when kernels have to be compiled, which takes seconds: once on a machine."""

import logging
from collections.abc import Callable
from functools import cache

#: Called when this process compiles its first kernel. A program may let another process compile others meanwhile.
at_compilation: list[Callable[[], None]] = []


@cache
def announce_compilation() -> None:
    """Tell the user, once, why this run takes longer."""
    message = "compiling the kernels for this machine: the first run takes longer, later ones start at once"
    logging.getLogger("deepmatching").info(message)
    for call in at_compilation:
        call()
