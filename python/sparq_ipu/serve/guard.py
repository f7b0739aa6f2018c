# SPDX-License-Identifier: Apache-2.0
"""The first check of every request over HTTP: its key and its size. It answers unexpected errors too."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from typing import Any, Awaitable, Callable

from sparq_ipu.serve.answers import error
from sparq_ipu.serve.engine import where

_log = logging.getLogger("sparq_ipu.serve")

#: of a body that is too large, bytes and seconds that are read and dropped: a client that still writes when
#: the connection ends does not see why
_DROPPED_BYTES, _DROPPED_SECONDS = 64 << 20, 10.0
#: beginnings of paths that need the key
_LOCKED = ("/v1", "/tokenize")


class _TooLarge(Exception):
    pass


class Guard:
    """ASGI middleware.

    Args:
        api_key: that requests to the model must have; None: none.
        max_bytes: of a request's body.
    """

    def __init__(self, app: Any, api_key: str | None, max_bytes: int):
        self._app = app
        self._api_key = None if api_key is None else api_key.encode()
        self._max_bytes = max_bytes

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = is_too_large = False
        n_bytes, has_more = 0, True

        async def counted() -> Any:
            nonlocal n_bytes, has_more, is_too_large
            message = await receive()
            has_more = message.get("more_body", False)
            n_bytes += len(message.get("body", b""))
            if n_bytes > self._max_bytes:
                is_too_large = True
                raise _TooLarge
            return message

        async def noted(message: Any) -> None:
            nonlocal has_begun
            if is_too_large and not has_begun:  # the application answers errors of its own making
                raise _TooLarge
            has_begun = True
            await send(message)

        headers = dict(scope["headers"])
        if scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        if self._api_key is not None and scope["path"].startswith(_LOCKED) and scope["method"] != "OPTIONS":
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._api_key):
                message = "the API key must be that of this server"
                await _answer(send, 401, error(message, "invalid_request_error", "invalid_api_key"))
                return
        try:
            length = headers.get(b"content-length", b"0")
            if not length.isdigit() or int(length) > self._max_bytes:
                raise _TooLarge
            await self._app(scope, counted, noted)
        except _TooLarge:
            message = f"the request must have at most {self._max_bytes} bytes"
            waits = headers.get(b"expect", b"").lower() == b"100-continue"  # with the body, for the answer
            if has_more and not waits:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_drop(receive), _DROPPED_SECONDS)
            if not has_begun:
                await _answer(send, 413, error(message, "invalid_request_error"))
        except asyncio.CancelledError:  # the server ends, and this connection takes too long
            if not has_begun:
                await _answer(send, 503, error("the server is shutting down", "server_error"))
        except Exception as unexpected:  # with a traceback, what was asked could be in the log
            _log.error("A request raised an error: %s", where(unexpected))
            if not has_begun:
                await _answer(send, 500, error("the server failed", "server_error"))


async def _drop(receive: Any) -> None:
    """Read the rest of a body."""
    n_bytes, has_more = 0, True
    while has_more and n_bytes < _DROPPED_BYTES:
        message = await receive()
        n_bytes += len(message.get("body", b""))
        has_more = message.get("more_body", False)


async def _answer(send: Callable[[Any], Awaitable[None]], status: int, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 413:
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
