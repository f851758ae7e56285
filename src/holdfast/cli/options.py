"""Build command-line flags from the declared options of Config, Machine, methods, heads and backbones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from ..hardware import Machine
from ..options import Option, declared

console = Console()
complaints = Console(stderr=True)

WHAT = "a benchmark (see `holdfast benchmarks`), or your own data as arrays:FOLDER or images:FOLDER (docs/scale.md)"
PANELS = {  # of the protocol; the options of methods, heads and backbones have one panel per owner
    "Model and method": ("method", "head", "slots", "backbone", "recipe"),
    "Training": ("epochs", "batch", "optimizer", "lr", "schedule", "augment", "precision", "seed", "quick"),
    "The stream": ("order", "classes_per_task", "tasks", "validation"),
}
VARIABLES = {"data": "HOLDFAST_DATA"}
MACHINE = {each.name: each for each in declared(Machine)}


def parameter(
    option: Option, panel: str | None, *, default: Any = None, kind: type | None = None, told: str = ""
) -> inspect.Parameter:
    """Make a parameter of a command from an option; None means that the flag was not given."""
    flag = f"{option.flag}/--no-{option.flag[2:]}" if option.kind is bool and default is None else option.flag
    text = option.help + (told or usual(option) if default is None else "")
    info = typer.Option(flag, help=text.replace("[", r"\["), rich_help_panel=panel, show_default=default is not None,
                        envvar=VARIABLES.get(option.name))
    annotation: Any = Annotated[Optional[kind or option.kind], info]  # noqa: UP045  the type is known at run time
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def usual(option: Option) -> str:
    """Return the text of an option's default, or "" if it has none or the help text already says it."""
    said = option.default is None or option.kind is bool or "(default" in option.help
    return "" if said else f"  (default: {option.default})"


def with_machine(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command that takes `machine`: the named fields become flags."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        flags = [parameter(MACHINE[name], "This machine", default=MACHINE[name].default) for name in names]

        def command(**values: Any) -> Any:
            chosen = {name: values.pop(name) for name in names}
            return function(machine=Machine(**chosen), **values)

        return _signed(command, function, flags, "machine")

    return wrap


def with_config(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command that takes `config`: the protocol and every declared option become flags."""
    from ..methods import recipes
    from ..runs.config import PROTOCOL, Config

    panels = {name: panel for panel, names in PANELS.items() for name in names}
    owned = owned_options()
    benchmark = inspect.Parameter(
        "benchmark", inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str, typer.Argument(help=WHAT, show_default=False)],
    )
    recipe = Option("recipe", str, False, "paper", {
        "help": "replay as in the paper, or strong: balance + augment-memory + distill, chosen per benchmark",
    })
    flags = [benchmark, parameter(recipe, panels["recipe"], default="paper")]
    flags += [parameter(each, panels.get(each.name), default=False if each.kind is bool else None) for each in PROTOCOL]
    for owners in owned.values():
        option, kinds = next(iter(owners.values())), {each.kind for each in owners.values()}
        panel, told = f"Options of {', '.join(owners)}", _defaults(owners)
        flags.append(parameter(option, panel, kind=None if len(kinds) == 1 else str, told=told))

    def command(benchmark: str, recipe: str, **values: Any) -> Any:
        protocol = {each.name: values.pop(each.name) for each in PROTOCOL}
        chosen = {name: value for name, value in protocol.items() if value is not None}
        given = {name: value for name in owned if (value := values.pop(name)) is not None}
        plain = Config(benchmark, **chosen)
        if recipe != "paper":
            augment = plain.augment or plain.protocol.augment
            given = recipes.expand(recipe, given, method=plain.method, augment=augment, strong=plain.protocol.strong)
        return function(config=Config(benchmark, **chosen, **given), **values)

    return _signed(command, function, flags, "config")


def _defaults(owners: dict[str, Option]) -> str:
    """Return the defaults where they differ between owners, each value once."""
    by_value: dict[Any, list[str]] = {}
    for owner, each in owners.items():
        by_value.setdefault(each.default, []).append(owner)
    if len(by_value) < 2:
        return ""
    told = [f"{value} for {', '.join(names)}" for value, names in by_value.items()]
    return f"  (default: {'; '.join(told)})"


def owned_options() -> dict[str, dict[str, Option]]:
    """Return every option that a method, a head or a backbone declares, by name and owner."""
    from ..backbones import BACKBONES
    from ..heads import HEADS
    from ..methods import METHODS
    from ..runs.config import PROTOCOL

    found: dict[str, dict[str, Option]] = {}
    for registry in (METHODS, HEADS, BACKBONES):
        for owner in registry:
            for option in declared(registry.options(owner)):
                found.setdefault(option.name, {})[owner] = option
    for each in PROTOCOL:
        found.pop(each.name, None)  # the protocol's option wins; Config raises for the other
    return dict(sorted(found.items(), key=lambda pair: list(pair[1])))  # owners together, for their panel


def _signed(
    command: Callable[..., Any], function: Callable[..., Any], flags: Iterable[inspect.Parameter], replaced: str
) -> Callable[..., Any]:
    """Give `command` the signature of `function`, with these flags in place of the parameter `replaced`."""
    own = [p for name, p in inspect.signature(function, eval_str=True).parameters.items() if name != replaced]
    parameters = [*flags, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command
