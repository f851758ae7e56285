"""`holdfast serve`: a model over HTTP, with a page to teach it by hand."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .. import hardware
from ..errors import BadConfig, CannotRead, HoldfastError, hint
from ..hardware import Machine
from .model_progress import say
from .options import complaints, with_machine
from .versions import ModelArgument, NoWorseBy

if TYPE_CHECKING:
    from ..estimator import IncrementalClassifier

TOKEN = "HOLDFAST_TOKEN"
SHORTEST = 16  # characters of a token
# A new model for images answers about a second after its first lesson: patch features of small copies.
NEW: dict[str, dict[str, Any]] = {"images": {"image_size": 32, "width": 0}, "texts": {}, "vectors": {}}
NOT_HERE = ("embedder", "offline", "cache", "device")


@with_machine("device", "threads")
def serve(
    machine: Machine,
    model: ModelArgument,
    new: Annotated[bool, typer.Option("--new", help="begin a model if there is none in the folder")] = False,
    takes: Annotated[str | None, typer.Option("--takes", help="what a new model takes: images, texts or vectors  "
                                              "(default: images)")] = None,
    embedder: Annotated[str | None, typer.Option("--embedder", help="of a new model, such as timm:NAME  "
                                                 "(default: none for images, MiniLM for texts)")] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--with", help="parameter of a new model's estimator, such as slots=50 or backbone=lenet"),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="never download an embedder")] = False,
    host: Annotated[str, typer.Option("--host", help="address to listen at; another one needs a token")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="port to listen at", min=0, max=65535)] = 8000,
    token: Annotated[Path | None, typer.Option("--token", help=f"file with the bearer token  (or {TOKEN})")] = None,
    origin: Annotated[list[str] | None, typer.Option("--origin", help="address of another page that may call")] = None,
    better_than: Annotated[
        float | None, typer.Option("--keep-if-better-than", help="share of held-back samples that a new model must "
                                   "get right to be served, such as 0.9")
    ] = None,
    no_worse_by: NoWorseBy = None,
    body: Annotated[int, typer.Option("--most-bytes", help="largest body of a request", min=1000)] = 32_000_000,
    images: Annotated[int, typer.Option("--most-images", help="most images per request", min=1)] = 100,
    pixels: Annotated[int, typer.Option("--most-pixels", help="most pixels per request", min=1)] = 40_000_000,
    text: Annotated[int, typer.Option("--most-text", help="most characters per text", min=1)] = 10_000,
    seconds: Annotated[float, typer.Option("--seconds", help="time-out of a prediction", min=0.1)] = 60.0,
    upload: Annotated[float, typer.Option("--upload-seconds", help="time for a body to arrive", min=0.1)] = 30.0,
    grace: Annotated[float, typer.Option("--grace-seconds", help="time for clients to take their answers when the "
                                         "server ends", min=0.1)] = 10.0,
) -> None:
    """Serve a model over HTTP: predictions while it learns, and a page to teach it by hand.

    [dim]holdfast serve m/ --new[/]                        [dim]teach pictures at http://127.0.0.1:8000[/]
    [dim]holdfast serve m/ --new --takes texts[/]
    [dim]holdfast serve m/ --host 0.0.0.0 --token token.txt[/]
    """
    try:
        import uvicorn

        from ..serving.app import create_app
        from ..serving.server import Server
    except ImportError as error:
        raise BadConfig(f"Serving needs {error.name}, which is missing: pip install 'holdfast[serve]'") from error
    from ..estimator import versions
    from ..estimator.gate import Gate
    from ..serving.limits import LOCAL, Limits
    from ..serving.metrics import Metrics
    from ..serving.state import Keeper, kind_of

    gate, secret = Gate(better_than, no_worse_by), read_token(token)
    if host not in LOCAL and secret is None:
        raise BadConfig(f"--host {host} can be reached by others: give a file with a token, --token FILE, or set "
                        f"{TOKEN}. Without one, only 127.0.0.1 is allowed.")
    hardware.use_threads(machine.threads)
    limits = Limits(body=body, images=images, pixels=pixels, text=text, seconds=seconds,
                    upload_seconds=upload, grace=grace)
    if not new:
        check_there(model)
    with versions.locked(model):  # before the model is read, so that no lesson of another server is lost
        clf = opened(model, new, takes or "images", embedder, parameters or [], offline, machine.device)
        clf.cache = False  # what is asked stays in memory
        kind = kind_of(clf, takes or "images")
        if hasattr(clf, "model_") and takes not in (None, kind):
            raise BadConfig(f"--takes {takes} cannot change: the model in {model} takes {kind}. Leave it out.")
        check_parameters(clf, kind)
        keeper = Keeper(model, clf, gate, kind, Metrics())
        app = create_app(keeper, limits, token=secret, host=host, origins=tuple(origin or ()))
        with listen(host, port) as listening:
            config = uvicorn.Config(
                app, log_level="warning", access_log=False, server_header=False, lifespan="on",
                limit_concurrency=limits.connections, timeout_keep_alive=10,
            )
            address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
            say(f"Serving {model} ({kind}, version {keeper.served.number}) at {address}, its description at "
                f"{address}/docs. Ctrl-C ends it.", complaints)
            Server(config, app.state.jobs, limits.grace, end_now).run(sockets=[listening])


def end_now() -> NoReturn:
    """End the process at a second Ctrl-C. The model on disk is whole at any moment."""
    say("Ended without waiting; a lesson that was running was not learned.", complaints)
    os._exit(130)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections from now on; they wait until the server answers."""
    try:
        made = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each answer waits 40 ms for the client's system
        return made
    except OSError as error:
        other = "--host" if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL else "--port"
        raise BadConfig(f"Cannot listen at {host}:{port}: {error.strerror}; choose another {other}.") from error


def check_there(folder: Path) -> None:
    """Raise BadConfig if there is no model in the folder."""
    from ..estimator.model_files import NAME

    if not (folder / NAME).exists():
        raise BadConfig(f"There is no model in {folder}: name a folder made by `holdfast learn`, or add --new.")


def opened(
    folder: Path, new: bool, takes: str, embedder: str | None, pairs: list[str], offline: bool, device: str
) -> IncrementalClassifier:
    """Load the model in a folder, or begin one."""
    from ..estimator import IncrementalClassifier
    from ..estimator.model_files import NAME
    from . import samples

    if takes not in NEW:
        raise BadConfig(f"--takes is {takes!r}; choose images, texts or vectors.")
    asked = read_parameters(pairs)
    if (folder / NAME).exists():
        clf = IncrementalClassifier.load(folder, device=device, offline=offline, embedder=embedder)
        if changed := [name for name, value in asked.items() if getattr(clf, name) != value]:
            raise BadConfig(f"{', '.join(changed)} cannot change: the model in {folder} was started with "
                            f"{', '.join(f'{name}={getattr(clf, name)!r}' for name in changed)}.")
        return clf
    if not new:
        check_there(folder)
    chosen: dict[str, Any] = dict(NEW[takes]) if not {"backbone", "method"} & asked.keys() else {}
    if takes == "texts":
        chosen["embedder"] = samples.text_embedder(embedder, offline)
    if embedder is not None:
        chosen = {"embedder": embedder}
    return IncrementalClassifier(**{**chosen, **asked}, device=device, offline=offline)


def read_parameters(pairs: list[str]) -> dict[str, Any]:
    """Return the estimator's parameters written as NAME=VALUE, values as JSON or plain words."""
    from ..estimator import IncrementalClassifier

    known = {*IncrementalClassifier().get_params()} - {*NOT_HERE}
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in known:
            raise BadConfig(f"--with {pair}: write NAME=VALUE with a parameter of the estimator.{hint(name, known)} "
                            f"Known: {', '.join(sorted(known))}.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
        if isinstance(found[name], list):  # a loaded model has tuples
            found[name] = tuple(found[name])
    return found


def check_parameters(clf: IncrementalClassifier, kind: str) -> None:
    """Raise BadConfig now, not at the first lesson, if a new model cannot be made of its parameters."""
    from ..data import inputs
    from ..estimator import settings

    if hasattr(clf, "model_"):
        return
    if clf.slots is None:
        raise BadConfig("slots is None; it must be a whole number, 1 or more.")
    try:
        settings.read(clf, image=kind == "images" and clf.embedder is None)
    except HoldfastError:
        raise
    except (TypeError, ValueError) as error:  # such as of scikit-learn, about random_state
        raise BadConfig(f"No model can be made with these parameters: {error}") from error
    if clf.image_size is not None:
        inputs.pair(clf.image_size)


def read_token(path: Path | None) -> str | None:
    """Return the token of a file or of the environment, or None without either."""
    if path is None:
        found = os.environ.get(TOKEN)
    else:
        try:
            found = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CannotRead(f"The token file {path} cannot be read: {error}") from error
    if found is None:
        return None
    if len(found := found.strip()) < SHORTEST or not found.isascii():
        raise BadConfig(f"The token has {len(found)} characters; use {SHORTEST} or more letters and digits, such as "
                        f"from `openssl rand -hex 32`.")
    return found
