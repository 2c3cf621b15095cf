"""The subcommands of ``deepmatching``, one per file; ``cli.py`` collects them."""
