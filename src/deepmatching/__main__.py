"""``python -m deepmatching``."""

from deepmatching.cli import main

main()
