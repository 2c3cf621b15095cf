"""The exceptions of the library: catching ``DeepMatchingError`` is enough."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class DeepMatchingError(ValueError):
    """An error that the user can fix: the message says what is wrong and what to do.

    The command line prints the message without a traceback and exits with code 2.
    """


class OutOfMemoryError(DeepMatchingError):
    """The work does not fit into the free memory; raised before anything is allocated, or when an allocation fails."""


#: Parts of the messages with which libraries report a failed allocation: PyTorch on a CPU, its threads and Python's,
#: OpenCV, the dynamic linker, and Python where it has no memory for the exception.
_ALLOCATION_FAILURES = (
    *("DefaultCPUAllocator", "not enough memory", "can't start new thread", "Insufficient memory"),
    *("failed to map segment", "annot allocate memory", "std::bad_alloc", "without exception set"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of Python or of any library, or its cause, says that an allocation failed."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):  # PyTorch's, on CUDA
        return True
    is_of_a_library = (
        isinstance(error, RuntimeError | ImportError | OSError | SystemError) or type(error).__module__ == "cv2"
    )
    if not is_of_a_library:
        return False
    cause = error.__cause__ or error.__context__
    says_so = any(part in str(error) for part in _ALLOCATION_FAILURES)
    return says_so or (cause is not None and is_out_of_memory(cause))


@contextmanager
def failed_allocations() -> Iterator[None]:
    """Turn a failed allocation inside this block into one ``OutOfMemoryError``."""
    try:
        yield
    except DeepMatchingError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(OUT_OF_MEMORY) from error


#: The sentence for a failed allocation. The advice holds for every model and command.
OUT_OF_MEMORY = (
    "The memory ran out: use smaller images (max_size) or a smaller radius, or give this process more memory."
)
