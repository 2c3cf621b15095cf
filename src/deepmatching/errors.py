"""The one exception a user of the library has to know."""


class DeepMatchingError(ValueError):
    """Something the user can put right: the message says what is wrong and what to do.

    The command line prints the message without a traceback and exits with code 2.
    """


class OutOfMemoryError(DeepMatchingError):
    """The work would not fit into the memory that is free; raised before anything is allocated."""
