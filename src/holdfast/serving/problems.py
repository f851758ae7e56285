"""Errors to answers: a status by the type of the error, and a sentence without a path of the server."""

from __future__ import annotations

import logging
import re
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from ..errors import BadConfig, BadFile, BadInput, CannotWrite, HoldfastError, LossNotFinite, UnknownName
from . import schemas
from .decoding import NoDecoder
from .jobs import Busy, Ending, QueueFull
from .state import Untaught

log = logging.getLogger("holdfast.serving")
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem} for status in (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 504, 507)
}
# The status of an error of ours: of the most special type that is listed.
STATUS: dict[type[BaseException], int] = {
    Untaught: 409, Busy: 409, QueueFull: 429, Ending: 503, NoDecoder: 503, CannotWrite: 507, BadFile: 409,
    BadInput: 422, BadConfig: 422, UnknownName: 422, LossNotFinite: 422,
}
OURS: dict[type[BaseException], str] = {  # errors about files of the server: their messages hold paths
    CannotWrite: "The new model could not be written to disk; the model is as it was.",
    BadFile: "A file of the model is damaged; choose another version.",
}
UNEXPECTED = "Something went wrong in the server; the model is as it was. The server's log says more."


class Wrong(Exception):
    """A request that is refused, with its status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def problem_of(error: BaseException, folder: Path) -> tuple[int, str]:
    """Return the status and the sentence of an error; no path of the server is in it."""
    if isinstance(error, Wrong):
        return error.status, error.sentence
    for kind in type(error).__mro__:
        if kind in STATUS:
            # A whole path only: a folder `/m` is no part of `/missing`.
            shown = re.sub(rf"{re.escape(str(folder))}(?!\w)", "the model's folder", str(error))
            return STATUS[kind], OURS.get(kind) or shown[:1000]
    return 500, UNEXPECTED


def log_problem(error: BaseException, folder: Path) -> None:
    """Log an error that is not the caller's: with its traceback if it was not expected at all."""
    status = problem_of(error, folder)[0]
    if status == 500:
        log.error("unexpected error", exc_info=error)
    elif isinstance(error, CannotWrite | BadFile | NoDecoder):
        log.error("%s", error)


def log_result(folder: Path) -> Any:
    """Return a callback that logs the error of a future that nobody may ask for."""

    def ended(future: Future[Any]) -> None:
        if (error := future.exception()) is not None:
            log_problem(error, folder)

    return ended


def handle_errors(app: FastAPI, folder: Path) -> None:
    """Answer every error with a sentence as JSON."""

    async def problem(request: Request, error: Exception) -> Response:
        log_problem(error, folder)
        status, text = problem_of(error, folder)
        return JSONResponse({"error": text}, status)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return JSONResponse({"error": sentence(error.errors())}, 422)

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = {404: "There is no such address here; /docs lists them.", 405: "This address does not take that method."}
        return JSONResponse({"error": text.get(error.status_code, str(error.detail))}, error.status_code, error.headers)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, unknown)
    for kind in (Wrong, Busy, NoDecoder, HoldfastError):
        app.add_exception_handler(kind, problem)
    app.add_middleware(Unexpected)


class Unexpected:
    """ASGI middleware, inside the others: log an error that no handler knows, and answer 500 with a sentence.

    Starlette's own handler for it is outside of all middleware, so its answer would lack their headers."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        started = False

        async def watch(message: dict[str, Any]) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            log.error("unexpected error", exc_info=error)
            await JSONResponse({"error": UNEXPECTED}, 500)(scope, receive, send)


def sentence(errors: Any) -> str:
    """Return what is wrong with a request, from pydantic's first complaint."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))[:200]
    return f"{place or 'The request'}: {first['msg']}."
