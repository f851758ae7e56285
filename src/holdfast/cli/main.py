"""The entry point of the command line. A command's module is imported when the command is used."""

from __future__ import annotations

import io
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
from rich.markup import escape

from .. import __version__
from ..errors import HoldfastError, nearest

COMMANDS = {  # name: module, function, help
    "learn": ("models", "learn", "Teach a model classes from images, texts or vectors; later calls add classes."),
    "predict": ("models", "predict", "Say what some samples are."),
    "evaluate": ("evaluate", "evaluate", "Measure a model on labelled samples that it has not seen."),
    "embed": ("models", "embed", "Write the vectors of some images to a file."),
    "inspect": ("inspecting", "inspect", "Show a model: its classes, what it confuses, and doubtful samples."),
    "history": ("versions", "history", "List the versions of a model that are kept."),
    "rollback": ("versions", "rollback", "Use an older version of a model again."),
    "serve": ("serve", "serve", "Serve a model over HTTP, with a page to teach it by hand."),
    "cache": ("cache", "cache", "Show or delete the vectors that embedders have made."),
    "run": ("run", "run", "Train on a benchmark task by task, and measure accuracy, forgetting and drift."),
    "reproduce": ("reproduce", "reproduce", "Reproduce the paper's tables and figures; finished runs are skipped."),
    "report": ("report", "report", "Build one HTML page from all results."),
    "benchmarks": ("lists", "benchmarks", "List the benchmarks."),
    "heads": ("lists", "list_heads", "List the heads, which turn features into classes."),
    "methods": ("lists", "methods", "List the methods of incremental learning."),
    "backbones": ("lists", "list_backbones", "List the backbones, which turn an image into features."),
    "data": ("lists", "show_data", "Show where each data set was found; download missing ones with --fetch."),
}
CONTEXT = {"help_option_names": ["-h", "--help"]}


class Commands(typer.core.TyperGroup):
    """Imports a command's module only when it is used, so that `holdfast --help` is fast."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        if ctx.meta.get("listing"):
            return typer.core.TyperCommand(name, help=COMMANDS[name][2])
        module, function, _ = COMMANDS[name]
        made = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
        made.command(name, context_settings=CONTEXT)(getattr(import_module(f"holdfast.cli.{module}"), function))
        return typer.main.get_command(made)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise nearest("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        ctx.meta["listing"] = True
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=Commands,
    name="holdfast",
    help="Class-incremental learning with classifiers that are fixed in advance.\n\n"
    "Try `holdfast run split-digits`: ten classes, two at a time, no download.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="show the version and exit")] = False) -> None:
    if version:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


def complain(heading: str, message: object) -> None:
    """Print a message to stderr without interpreting brackets as markup and without wrapping lines."""
    from .options import complaints

    complaints.quiet = False
    complaints.print(heading, escape(str(message)), highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line. Our own errors are printed as messages, not as tracebacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print ? for a character that the terminal lacks
    warnings.showwarning = lambda message, *rest, **more: complain("[yellow]warning:[/]", message)
    try:
        app()
    except HoldfastError as error:
        if type(error).__name__ != "Elsewhere":  # another rank prints the reason
            complain("[red]error:[/]", error)
        sys.exit(2)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        complain("[red]error:[/]", f"{what}. Check that the path exists and that you may read and write it.")
        sys.exit(2)


if __name__ == "__main__":
    main()
