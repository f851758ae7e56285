"""The command line: parses, calls, prints."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table

from . import __version__, data, experiment, heads, paper, progress
from .benchmarks import BENCHMARKS
from .config import Config
from .errors import SteadfastError
from .methods import METHODS
from .signals import Stopping
from .training import Stopped

app = typer.Typer(
    name="steadfast",
    help="Class-incremental learning whose features stay put.\n\n"
    "Try `steadfast run split-digits`: ten classes, two at a time, no download.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
complaints = Console(stderr=True)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", envvar="STEADFAST_DATA", help="folder with the data sets in their original layout"),
]
OutOption = Annotated[Path, typer.Option("--out", help="where the run folders go")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads  [default: all cores]")]


def with_config(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command every field of Config as an option: the dataclass is the command line."""
    hints = get_type_hints(Config)
    own = [p for name, p in inspect.signature(function, eval_str=True).parameters.items() if name != "config"]
    fields: list[inspect.Parameter] = []
    for field in dataclasses.fields(Config):
        if field.name == "benchmark":
            info: Any = typer.Argument(help="what to learn; `steadfast benchmarks` lists them", show_default=False)
            default: Any = inspect.Parameter.empty
        else:
            info = typer.Option("--" + field.name.replace("_", "-"), help=field.metadata["help"])
            default = field.default
        kind = inspect.Parameter.KEYWORD_ONLY
        fields.append(
            inspect.Parameter(field.name, kind, default=default, annotation=Annotated[hints[field.name], info])
        )

    def command(**values: Any) -> Any:
        config = Config(**{field.name: values.pop(field.name) for field in dataclasses.fields(Config)})
        return function(config=config, **values)

    parameters = fields + [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


@app.command()
@with_config
def run(
    config: Config,
    data: DataOption = None,
    out: OutOption = Path("runs"),
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    resume: Annotated[bool, typer.Option("--resume/--fresh", help="go on where it was stopped, or start anew")] = True,
) -> None:
    """Learn a benchmark's classes task by task, and measure everything.

    The same command again goes on where it was stopped, or shows the result if it is finished.

    [dim]steadfast run split-digits[/]                                   [dim]the demo, a minute[/]
    [dim]steadfast run split-mnist --memory 100[/]                       [dim]the paper's method[/]
    [dim]steadfast run split-mnist --memory 100 --head expanding[/]      [dim]its rival[/]
    """
    full = config.resolved()
    folder = experiment.RunFolder(out / full.name)
    console.print(f"[bold]{full.command()}[/]", highlight=False)
    with Stopping() as stopping:
        try:
            with progress.live(console, full.phases(), full.epochs or 1, stopping.asked) as watcher:
                result = experiment.run(
                    full, out, data_root=data, device=device, threads=threads, watcher=watcher, resume=resume
                )
        except Stopped:
            complaints.print(f"Stopped and saved in {folder.path}. Go on with the same command:\n{full.command()}")
            raise typer.Exit(stopping.exit_code) from None
    progress.show_result(console, result, paper.published(full))
    console.print(f"Everything is in [bold]{folder.path}[/]: result.json, accuracy.png, ...", highlight=False)


@app.command()
def benchmarks() -> None:
    """List the benchmarks."""
    table = Table("benchmark", "what", "tasks", "backbone", "epochs", "memory")
    for name, line in BENCHMARKS.describe().items():
        b = BENCHMARKS[name]
        table.add_row(name, line, f"{b.tasks} x {b.classes_per_task}", b.backbone, str(b.epochs), str(b.memory))
    console.print(table)


@app.command("heads")
def list_heads() -> None:
    """List the heads: what turns features into classes."""
    _list(heads.HEADS.describe(), "head")


@app.command()
def methods() -> None:
    """List the methods: how to learn without forgetting."""
    _list(METHODS.describe(), "method")


def _list(lines: dict[str, str], kind: str) -> None:
    table = Table(kind, "what")
    for name, line in lines.items():
        table.add_row(name, line)
    console.print(table)


@app.command("data")
def show_data(
    name: Annotated[str | None, typer.Argument(help="one data set  [default: all]", show_default=False)] = None,
    data_folder: DataOption = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="download what is missing into the cache folder")] = False,
) -> None:
    """Show which data is found where, and fetch what is missing."""
    table = Table("data set", "file", "status", "where")
    for each in [name] if name else data.names():
        found = data.fetch(each, data_folder) if fetch else data.locate(each, data_folder)
        for part in found:
            colour = {"ok": "green", "missing": "yellow", "damaged": "red"}[part.status]
            where = " ".join(str(word) for word in (part.where, part.path) if word)
            table.add_row(each, part.file, f"[{colour}]{part.status}[/]", where)
    console.print(table)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="show the version and exit")] = False) -> None:
    if version:
        console.print(f"steadfast {__version__}", highlight=False)
        raise typer.Exit


def main() -> None:
    """Entry point: our own errors are messages, not tracebacks."""
    warnings.showwarning = lambda message, *rest, **more: complaints.print(f"[yellow]{message}[/]")
    try:
        app()
    except SteadfastError as error:
        complaints.print(f"[red]error:[/] {error}", highlight=False, markup=True)
        sys.exit(2)
    except OSError as error:
        complaints.print(f"[red]error:[/] {error}", highlight=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
