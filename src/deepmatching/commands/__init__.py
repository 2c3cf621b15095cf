"""The subcommands of ``deepmatching``, one a file; ``cli.py`` puts them together."""
