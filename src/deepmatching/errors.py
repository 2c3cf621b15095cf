"""The exceptions of the library: catching ``DeepMatchingError`` is enough."""


class DeepMatchingError(ValueError):
    """An error that the user can fix: the message says what is wrong and what to do.

    The command line prints the message without a traceback and exits with code 2.
    """


class OutOfMemoryError(DeepMatchingError):
    """The work does not fit into the free memory; raised before anything is allocated."""
