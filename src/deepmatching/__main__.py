"""``deepmatching`` and ``python -m deepmatching``."""

import sys


def main() -> None:
    """Run the command. The interrupt key ends it without a traceback, from the first import on."""
    try:
        from deepmatching.cli import main as run
    except KeyboardInterrupt:
        print("deepmatching: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
