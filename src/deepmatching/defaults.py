"""What a stranger gets; apart from the modules that need PyTorch, so that ``--help`` is quick."""

#: The model that is used unless another is named; see ``deepmatching.models``.
DEFAULT = "compact"
