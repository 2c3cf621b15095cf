"""The command ``deepmatching``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from deepmatching import __version__
from deepmatching.commands.bench import bench
from deepmatching.commands.common import say
from deepmatching.commands.demo import demo
from deepmatching.commands.evaluate import evaluate
from deepmatching.commands.flow import flow
from deepmatching.commands.match import match
from deepmatching.commands.reproduce import reproduce
from deepmatching.commands.scores import scores
from deepmatching.commands.synthesize import synthesize
from deepmatching.commands.train import train
from deepmatching.errors import DeepMatchingError

app = typer.Typer(
    help="Deep Matching that learns: quasi-dense correspondences between two images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (match, flow, evaluate, train, synthesize, reproduce, scores, demo, bench):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"deepmatching {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Deep Matching that learns: quasi-dense correspondences between two images."""


def main() -> None:
    """Run the command: what the user can put right is one sentence and exit code 2."""
    try:
        sys.exit(app(standalone_mode=False))
    except DeepMatchingError as error:
        say(f"deepmatching: {error}")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        say("deepmatching: interrupted")
        sys.exit(130)
    except Exception as error:
        # Usage errors: their class is Click's, which typer carries along under names that change with its version.
        if not hasattr(error, "format_message"):
            raise
        say(f"deepmatching: {error.format_message()} See 'deepmatching --help'.")
        sys.exit(2)
