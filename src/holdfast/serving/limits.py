"""What a request may ask for, and the guard in front of every route: body, time, token, host and origin."""

from __future__ import annotations

import asyncio
import hmac
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

LOCAL = ("127.0.0.1", "localhost", "::1")
OPEN = ("/", "/health", "/docs", "/openapi.json", "/favicon.ico")  # no secret is in them, and a browser must load them
READS = ("GET", "HEAD", "OPTIONS")
HEADERS = (
    (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'none'"),
)


@dataclass(frozen=True)
class Limits:
    """Bounds of one request and of the whole server."""

    body: int = 32_000_000  # bytes
    images: int = 100  # per request
    pixels: int = 40_000_000  # of all images of a request
    rows: int = 10_000  # texts or vectors per request
    text: int = 10_000  # characters per text
    numbers: int = 100_000  # per vector
    label: int = 200  # characters
    jobs: int = 8  # that wait for the teacher
    connections: int = 200
    upload_seconds: float = 30.0  # for a body to arrive
    seconds: float = 60.0  # for an answer; teaching takes as long as it needs
    grace: float = 10.0  # seconds for clients to take their answers when the server ends


class Guard:
    """ASGI middleware: refuse a wrong token, a foreign origin, a large or a slow body, each with a sentence.

    The body is read here, so that a slow sender holds a small task and never a thread of the model. Without a token,
    the names of host and origin protect a local model from other pages in a browser. With a token, only its holder is
    answered, and a proxy in front may have any name."""

    def __init__(self, app: Any, limits: Limits, token: str | None, host: str, origins: tuple[str, ...]) -> None:
        self.app, self.limits, self.origins = app, limits, origins
        self.token = None if token is None else token.encode()
        self.hosts = (*LOCAL, host) if token is None else None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        if refusal := self._refusal(scope, headers):
            return await refuse(send, *refusal)

        async def with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        if scope["method"] in READS:  # no route reads their bodies
            return await self.app(scope, receive, with_headers)
        try:
            body = await asyncio.wait_for(self._body(headers, receive), self.limits.upload_seconds)
        except asyncio.TimeoutError:
            seconds = self.limits.upload_seconds
            return await refuse(send, 408, f"The body did not arrive within {seconds:g} seconds.")
        except asyncio.IncompleteReadError:
            return None  # the sender is gone
        if body is None:
            return await refuse(send, 413, f"The body is larger than {self.limits.body:,} bytes; send less at a time.")
        given = False

        async def replay() -> dict[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, with_headers)

    def _refusal(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """Return the status and the sentence for a request that may not go on; nothing of its body is read for it."""
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        try:
            name, page = _name_of(f"//{host}"), urlsplit(origin).netloc
        except ValueError:
            return 400, "The header Host or Origin cannot be read; a host is written like 127.0.0.1:8000 or [::1]:8000."
        path, reads = scope["path"], scope["method"] in READS
        if self.hosts is not None and name not in self.hosts:
            return 403, "This server answers at 127.0.0.1 and localhost only; another name was asked for."
        if self.hosts is not None and origin and not reads and page != host and origin not in self.origins:
            return 403, "A page of another address may not change this model; name it with --origin to allow it."
        free = reads and (path in OPEN or path.startswith("/static-offline-docs"))
        if self.token is None or free:
            return None
        given = headers.get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self.token):
            return 401, "This needs the header `Authorization: Bearer TOKEN` with the server's token."
        return None

    async def _body(self, headers: dict[bytes, bytes], receive: Any) -> bytes | None:
        """Return the body, or None if it is too large."""
        claimed = headers.get(b"content-length", b"0")
        if not claimed.isdigit() or int(claimed) > self.limits.body:
            return None
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise asyncio.IncompleteReadError(b"", None)
            part = message.get("body", b"")
            size += len(part)
            if size > self.limits.body:
                return None
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


def _name_of(address: str) -> str:
    """Return the host of an address without its port; raise ValueError if either cannot be read."""
    parts = urlsplit(address)
    if parts.path or parts.query or parts.username is not None or (parts.port is not None and not parts.hostname):
        raise ValueError(address)
    return parts.hostname or ""


async def refuse(send: Any, status: int, sentence: str) -> None:
    """Send an error as JSON, and close the connection, since the rest of the body may still be on its way."""
    body = json.dumps({"error": sentence}).encode()
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
            (b"connection", b"close")]
    if status == 401:
        kind.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *HEADERS]})
    await send({"type": "http.response.body", "body": body})
