"""Errors to answers: a status and a sentence, without a path of the server."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from ..errors import BadFile, CannotWrite, HoldfastError
from . import schemas
from .jobs import Busy
from .state import Untaught

log = logging.getLogger("holdfast.serving")
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem} for status in (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 504, 507)
}


class Wrong(Exception):
    """A request that is refused, with its status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def problem_of(error: BaseException, folder: Path) -> tuple[int, str]:
    """Return the status and the sentence of an error; no path of the server is in it."""
    if isinstance(error, Wrong):
        return error.status, error.sentence
    if isinstance(error, Untaught):
        return 409, str(error)
    if isinstance(error, Busy):
        return (503 if "ending" in str(error) else 429 if "wait already" in str(error) else 409), str(error)
    if isinstance(error, CannotWrite):
        return 507, "The new model could not be written to disk; the model is as it was."
    if isinstance(error, BadFile):
        return 409, "A file of the model is damaged; choose another version."
    if isinstance(error, ValueError | HoldfastError):
        return 422, str(error).replace(str(folder), "the model's folder")[:1000]
    log.error("unexpected error", exc_info=error)
    return 500, "Something went wrong in the server; the model is as it was. The server's log says more."


def handle_errors(app: FastAPI, folder: Path) -> None:
    """Answer every error with a sentence as JSON."""

    async def problem(request: Request, error: Exception) -> Response:
        if isinstance(error, CannotWrite | BadFile):
            log.error("%s", error)
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
    for kind in (Wrong, Busy, HoldfastError, ValueError, Exception):
        app.add_exception_handler(kind, problem)


def sentence(errors: Any) -> str:
    """Return what is wrong with a request, from pydantic's first complaint."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))[:200]
    return f"{place or 'The request'}: {first['msg']}."
