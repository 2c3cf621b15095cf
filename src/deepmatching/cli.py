"""The command ``deepmatching``."""

import os
import re
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from deepmatching import __version__
from deepmatching.commands import (
    align,
    bench,
    bulk,
    demo,
    evaluate,
    explore,
    export,
    export_onnx,
    flow,
    match,
    reproduce,
    scores,
    sfm,
    synthesize,
    track,
    train,
    warp,
)
from deepmatching.commands.machine import require_addresses, watch
from deepmatching.commands.messages import INTERRUPTED, complain
from deepmatching.commands.output import guarded_errors, guarded_output, silence_libraries
from deepmatching.errors import DeepMatchingError, explain
from deepmatching.extensions import VARIABLE, import_plugins


class Command(TyperCommand):
    """A command with plain help: ``A``, ``--seed INT``, ``[default: all]``; not ``{A} <path>`` or ``(all)``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(re.fullmatch("(--[a-z-]+=)?", argument) for argument in args):
            raise DeepMatchingError("An option or argument is empty: give it a value, or leave it out.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        watch()
        require_addresses()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # some versions of typer would end without a word
            complain("interrupted")
            raise typer.Exit(INTERRUPTED) from None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                name = re.sub(" ?<(.*?)( range)?>$", "" if param.metavar else _plain_type, record[0])
                text = re.sub(r"\[default: \((.*)\)(; [^]]*)?\]$", r"[default: \1\2]", record[1])
                rows[param.param_type_name].append((name, text))
        for kind, records in rows.items():
            if records:
                with formatter.section(f"{kind.title()}s"):
                    formatter.write_dl(records)


def _plain_type(found: re.Match[str]) -> str:
    """Return ``INT`` for a type, ``clean|final`` for a choice."""
    return f" {found[1] if '|' in found[1] else found[1].upper()}"


app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
#: The commands in the order of ``--help``; each is the function with the name of its module.
COMMANDS = (
    *(match, flow, track, warp, align, explore, bulk, export, sfm, evaluate, train),
    *(synthesize, reproduce, scores, export_onnx, demo, bench),
)
for module in COMMANDS:
    app.command(cls=Command)(getattr(module, module.__name__.rpartition(".")[2]))

_PLUGIN_HELP = "Import this module, for files that name its classes as MODULE:Class; repeatable."


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    plugin: Annotated[list[str] | None, typer.Option(metavar="MODULE", help=_PLUGIN_HELP)] = None,
) -> None:
    """Deep Matching that learns: quasi-dense correspondences between two images."""
    if version:
        print(f"deepmatching {__version__}")
        raise typer.Exit()
    if plugin:
        os.environ[VARIABLE] = ",".join([*filter(None, [os.environ.get(VARIABLE)]), *plugin])
        import_plugins()
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def main() -> None:
    """Run the command. An error that the user can fix is printed in one line, with exit code 2."""
    if sys.stderr is None:  # closed, as by `2>&-`; some versions of NumPy's f2py need one to be imported
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process
    with guarded_errors():
        try:
            silence_libraries()
            with guarded_output():
                sys.exit(app(prog_name="deepmatching", standalone_mode=False))
        except (KeyboardInterrupt, typer.Abort) as error:
            if isinstance(error.__cause__, EOFError):  # typer takes it for the end of the user's input
                raise error.__cause__ from None
            complain("interrupted")
            sys.exit(INTERRUPTED)
        except Exception as error:
            complain(_reason(error))
            sys.exit(2)


def _reason(error: Exception) -> str:
    """Return the message of an error that the user can fix; raise others again."""
    if isinstance(error, DeepMatchingError):
        return str(error)
    if sentence := explain(error):
        return sentence
    # Usage errors are recognised by a method: typer includes their class, and its name depends on the version.
    if not hasattr(error, "format_message"):
        raise error
    context = getattr(error, "ctx", None)
    command = "deepmatching" if context is None else context.command_path
    return f"{error.format_message().rstrip('.')}. See '{command} --help'."
