"""The exceptions of the library, all of them ``DeepMatchingError``, and checks of values that raise it."""

import errno
import math
import operator
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any


class DeepMatchingError(ValueError):
    """An error that the user can fix: the message says what is wrong and what to do.

    The command line prints the message, one line, without a traceback and exits with code 2.
    """

    def __init__(self, message: object = "") -> None:
        text = re.sub(r"\n\s+", " ", str(message))  # of arrays; other ends of lines are those of names
        super().__init__(r"\n".join(text.splitlines()))


class OutOfMemoryError(DeepMatchingError):
    """The work does not fit into the free memory; raised before anything is allocated, or when an allocation fails."""


#: The message for a failed allocation. The advice holds for every model and command.
OUT_OF_MEMORY = (
    "The memory ran out: use smaller images (max_size) or a smaller radius, or give this process more memory."
)

#: Parts of the messages with which libraries report a failed allocation: PyTorch on a CPU, its threads and Python's,
#: OpenCV, the dynamic linker, and Python where it has no memory for the exception.
_ALLOCATION_FAILURES = (
    *("DefaultCPUAllocator", "not enough memory", "can't start new thread", "Insufficient memory"),
    *("failed to map segment", "annot allocate memory", "std::bad_alloc", "without exception set"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception of Python or of any library, or its cause, says that an allocation failed."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):  # PyTorch's, on CUDA
        return True
    if not (isinstance(error, RuntimeError | ImportError | OSError | SystemError) or type(error).__module__ == "cv2"):
        return False
    cause = error.__cause__ or error.__context__
    says_so = any(part in str(error) for part in _ALLOCATION_FAILURES)
    return says_so or (cause is not None and is_out_of_memory(cause))


#: How to get OpenCV's extra modules, whichever of its packages are there.
INSTALL_CONTRIB = "pip install --force-reinstall --no-deps opencv-contrib-python-headless"


def explain(error: BaseException) -> str:
    """Return a sentence for what users can mend, memory that ran out or a broken OpenCV; none for other errors."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    is_import = isinstance(error, ImportError)
    module = getattr(error, "name", None) if is_import else getattr(getattr(error, "obj", None), "__name__", None)
    if not (is_import or isinstance(error, AttributeError)) or str(module).partition(".")[0] != "cv2":
        return ""
    reason = next(iter(str(error).splitlines()), "")
    return f"OpenCV is missing or incomplete ({reason}): pip install --force-reinstall opencv-python-headless."


@contextmanager
def failed_allocations() -> Iterator[None]:
    """Turn a failed allocation inside this block into an ``OutOfMemoryError``."""
    try:
        yield
    except DeepMatchingError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(OUT_OF_MEMORY) from error


_MAX_REPR = 60  #: most characters of a value in a message


def check_number(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
    also: Collection[str] = (),
) -> None:
    """Raise unless the value is a finite number in the range, or one of the words in ``also``."""
    if isinstance(value, str) and value in also:
        return
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    tests = ((minimum, operator.ge), (maximum, operator.le), (above, operator.gt), (below, operator.lt))
    if (
        is_number
        and (isinstance(value, Integral) or math.isfinite(value))  # 400 digits are whole, but too many for isfinite
        and all(bound is None or compare(value, bound) for bound, compare in tests)
    ):
        return
    bounds = {"of at least": minimum, "of at most": maximum, "above": above, "below": below}
    if minimum is not None and maximum is not None:
        bounds = {f"from {minimum} to": maximum}
    range_ = " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)
    words = "".join(f" or {word!r}" for word in also)
    kind = f"a {'whole ' * whole}number {range_}".strip()
    raise DeepMatchingError(f"{name} must be {kind}{words}, not {short_repr(value)}.")


def short_repr(value: Any) -> str:
    """Return a value as messages show it: in at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # Python writes numbers of up to 4300 digits only
        return "a number of thousands of digits" if isinstance(error, ValueError) else f"a {type(value).__name__}"
    return text if len(text) <= _MAX_REPR else f"{text[: _MAX_REPR - 1]}…"


def counted(number: int, noun: str) -> str:
    """Return a number of things in words, such as ``"1 match"`` or ``"2 matches"``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def check_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raise unless the value is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        words = [repr(word) for word in allowed]
        raise DeepMatchingError(f"{name} must be {', '.join(words[:-1])} or {words[-1]}, not {short_repr(value)}.")


def check_type(name: str, value: Any, kind: type) -> None:
    """Raise unless the value is of this type."""
    if not isinstance(value, kind):
        raise DeepMatchingError(f"{name} must be of type {kind.__name__}, not {short_repr(value)}.")


def check_iterable(name: str, value: Any) -> None:
    """Raise unless the value is a list or another iterable; a text, such as the name of a video, is none here."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DeepMatchingError(f"{name} must be a list or another iterable, not {short_repr(value)}.")


def check_size(name: str, size: Any) -> tuple[int, int]:
    """Return the size of an image, (rows, columns), as two whole numbers; raise for anything else."""
    sides = tuple(size) if isinstance(size, tuple | list) else ()
    if len(sides) != 2 or not all(isinstance(side, Integral) and 0 < int(side) < 2**31 for side in sides):
        raise DeepMatchingError(f"{name} must be (rows, columns), two positive numbers, not {short_repr(size)}.")
    return int(sides[0]), int(sides[1])


def check_frame_size(number: int, before: tuple[int, int] | None, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size (rows, columns) of a frame of a sequence; raise unless the one before, if any, has it, too."""
    if before is not None and size != before:
        sizes = f"is {size[1]}x{size[0]} pixels, but the one before is {before[1]}x{before[0]}"
        raise DeepMatchingError(f"Frame {number} {sizes}: all frames of a sequence must be of one size.")
    return size
