"""What the commands share: the options that every command spells the same way, and the consoles."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from ..config import Config

console = Console()
complaints = Console(stderr=True)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", envvar="STEADFAST_DATA", help="folder with the data sets in their original layout"),
]
OutOption = Annotated[Path, typer.Option("--out", help="where the run folders go")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads  (default: all cores)")]

CompileOption = Annotated[
    bool, typer.Option("--compile", help="torch.compile the backbone for training; slow to start, needs a compiler")
]
ContiguousOption = Annotated[
    bool, typer.Option("--contiguous", help="tensors not channels last, where a device is faster without")
]

WHAT = "what to learn; `steadfast benchmarks` lists them; or your own, arrays:FOLDER or images:FOLDER (docs/scale.md)"

# How `--help` groups the fields of Config; a field that is in none would be under "Options".
PANELS = {
    "The method": ("method", "head", "slots", "over", "embedding", "memory", "remembered", "policy"),
    "Training": ("backbone", "epochs", "batch", "optimizer", "lr", "augment", "precision", "seed"),
    "The stream": ("order", "classes_per_task", "tasks", "validation", "quick"),
    "Replay beyond the paper": ("recipe", "balance", "empty", "vary", "distill", "distill_weight", "insert"),
    "The rivals": ("strength", "importance", "importance_samples", "margin", "gem_replay"),
}
_PANEL = {name: panel for panel, names in PANELS.items() for name in names}


def with_config(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command every field of Config as an option: the dataclass is the command line."""
    hints = get_type_hints(Config)
    own = [p for name, p in inspect.signature(function, eval_str=True).parameters.items() if name != "config"]
    fields: list[inspect.Parameter] = []
    for field in dataclasses.fields(Config):
        if field.name == "benchmark":
            info: Any = typer.Argument(help=WHAT, show_default=False)
            default: Any = inspect.Parameter.empty
        else:
            flag = "--" + field.name.replace("_", "-")
            flag += f"/--no-{flag[2:]}" if hints[field.name] == bool | None else ""  # a recipe may have turned it on
            info = typer.Option(flag, help=field.metadata["help"], rich_help_panel=_PANEL.get(field.name))
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
