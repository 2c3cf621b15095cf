"""The command ``deepmatching``."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

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


class Command(TyperCommand):
    """A command whose help shows arguments as ``A``, where typer writes ``{A}`` and ``A <path>``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, kind, unwanted in (("Arguments", "argument", " <.*>$"), ("Options", "option", "$")):
            records = [param.get_help_record(ctx) for param in self.get_params(ctx) if param.param_type_name == kind]
            if rows := [(re.sub(unwanted, "", name), text) for name, text in filter(None, records)]:
                with formatter.section(title):
                    formatter.write_dl(rows)


app = typer.Typer(
    help="Deep Matching that learns: quasi-dense correspondences between two images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in (match, flow, evaluate, train, synthesize, reproduce, scores, demo, bench):
    app.command(cls=Command)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"deepmatching {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Deep Matching that learns: quasi-dense correspondences between two images."""


def main() -> None:
    """Run the command. An error that the user can fix is one sentence, with exit code 2."""
    try:
        sys.exit(app(standalone_mode=False))
    except DeepMatchingError as error:
        say(f"deepmatching: {error}")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        say("deepmatching: interrupted")
        sys.exit(130)
    except Exception as error:
        # Usage errors are recognised by a method: typer includes their class, and its name depends on the version.
        if not hasattr(error, "format_message"):
            raise
        say(f"deepmatching: {error.format_message()} See 'deepmatching --help'.")
        sys.exit(2)
