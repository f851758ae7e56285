"""The command line: parses, calls, prints."""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated

import typer
from rich.markup import escape

from . import __version__
from .commands import lists, models, report, reproduce, run
from .commands.options import complaints, console
from .distributed import Elsewhere
from .errors import SteadfastError

app = typer.Typer(
    name="steadfast",
    help="Class-incremental learning whose features stay put.\n\n"
    "Try `steadfast run split-digits`: ten classes, two at a time, no download.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("learn")(models.learn)
app.command("predict")(models.predict)
app.command("embed")(models.embed)
app.command("inspect")(models.inspect)
app.command("benchmarks")(lists.benchmarks)
app.command("heads")(lists.list_heads)
app.command("methods")(lists.methods)
app.command("backbones")(lists.list_backbones)
app.command("data")(lists.show_data)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="show the version and exit")] = False) -> None:
    if version:
        console.print(f"steadfast {__version__}", highlight=False)
        raise typer.Exit


def complain(heading: str, message: object) -> None:
    """To stderr, the message as it is: brackets in it are no markup, and a path is not broken into lines."""
    complaints.print(heading, escape(str(message)), highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point: our own errors are messages, not tracebacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where there is no degree sign, a ? is better than a traceback
    warnings.showwarning = lambda message, *rest, **more: complain("[yellow]warning:[/]", message)
    try:
        app()
    except Elsewhere:  # another process has said why
        sys.exit(2)
    except SteadfastError as error:
        complaints.quiet = False
        complain("[red]error:[/]", error)
        sys.exit(2)
    except OSError as error:
        complain("[red]error:[/]", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
