# SPDX-License-Identifier: Apache-2.0
"""The application: OpenAI's completions and chat completions over an engine, models, health, metrics."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Sequence

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from sparq_ipu.serve import requests as serving
from sparq_ipu.serve.answers import Answer, error
from sparq_ipu.serve.engine import Engine
from sparq_ipu.serve.guard import Guard
from sparq_ipu.serve.prompts import CHARACTERS_PER_TOKEN, Prompts
from sparq_ipu.serve.responses import ResponsesAnswer, ResponsesRequest
from sparq_ipu.serve.schemas import (
    ChatRequest,
    CompletionRequest,
    Invalid,
    TokenizeRequest,
)
from sparq_ipu.serve.text import TokenNames

#: between two looks whether a client is still there
_LOOK_SECONDS = 0.25
_PAGE = Path(__file__).with_name("page.html")
#: of the page: it talks to this server alone
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
#: bytes of a body, beside those of text for each token of the context
_MORE_BYTES = 1 << 20


class _Gone(Exception):
    """The client is."""


def create_app(
    engine: Engine, prompts: Prompts, name: str, api_key: str | None = None, origins: Sequence[str] = ()
) -> FastAPI:
    """The ASGI application.

    Args:
        prompts: what requests are made of.
        name: of the model, for clients.
        api_key: that requests below /v1 must have.
        origins: of web pages that may ask (CORS).
    """
    app = FastAPI(title="sparq-ipu", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, api_key=api_key, max_bytes=_MORE_BYTES + CHARACTERS_PER_TOKEN * prompts.context)
    if origins:  # around all else: refusals are for the page to read too
        methods = ["GET", "POST"]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=["*"])
    created = int(time.time())
    # One thread: a tokenizer is not for several.
    names = TokenNames(engine.tokenizer)
    reading = concurrent.futures.ThreadPoolExecutor(1, "sparq-ipu-reader")

    async def converted(http: Request, kind: Any, convert: Callable[[Any], Any]) -> Any:
        """What a request is made into, or an error's response. All that takes time is outside of the event
        loop, which the others' tokens go through."""
        loop = asyncio.get_running_loop()
        try:
            body = await http.body()
            return await loop.run_in_executor(reading, lambda: convert(kind.read(body)))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Invalid as invalid:
            message = str(invalid)
            for own, name_here in kind.renamed.items():
                if message.startswith((f"{own}.", f"{own}:", f"{own} ")):
                    message = f"{name_here}{message[len(own) :]}"
            param = kind.renamed.get(invalid.param, invalid.param)
            return _error(invalid.status, message, param=param, code=invalid.code)

    async def answer(
        kind: type[CompletionRequest] | type[ChatRequest],
        http: Request,
        tokens_of: Callable[[Any], list[list[int]]],
    ) -> Response:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[int, serving.Event]] = asyncio.Queue()

        def emit(index: int) -> Callable[[serving.Event], None]:
            def put(event: serving.Event) -> None:
                loop.call_soon_threadsafe(queue.put_nowait, (index, event))

            return put

        def read(said: Any) -> tuple[Any, list[serving.Request], int]:
            if said.model is not None and said.model != name:
                message = f"the model must be {name}, which is served here"
                raise Invalid(message, "model", "model_not_found", 404)
            n_answers = (said.n or 1) * len(said.prompts)
            if n_answers > engine.most:
                rule = f"ask for at most {engine.most} answers, as many as have places or may wait"
                raise Invalid(f"n, of all prompts, must {rule}; got {n_answers}", "n")
            tokens = tokens_of(said)
            return said, prompts.requests(said, tokens, emit), len(tokens)

        made = await converted(http, kind, read)
        if isinstance(made, Response):
            return made
        said, requests, n_prompts = made
        try:
            engine.submit(*requests)
        except serving.Refused as refused:
            status = 503 if refused.is_closing else 429
            return _error(status, str(refused), "server_error" if refused.is_closing else "rate_limit_error")
        is_chat = isinstance(said, ChatRequest)
        has_log_probabilities = said.logprobs is not None and said.logprobs is not False
        calls = prompts.calls(said) if isinstance(said, ChatRequest) else None
        form_of = ResponsesAnswer if isinstance(said, ResponsesRequest) else Answer
        form = form_of(name, names, is_chat, has_log_probabilities, calls)
        events = _events(engine, requests, queue, http)
        if said.stream:
            parts = _stream(form, events, len(requests), n_prompts, said.with_usage)
            return StreamingResponse(parts, media_type="text/event-stream")
        return await _whole(form, events, len(requests), n_prompts)

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        return await answer(CompletionRequest, http, prompts.of_completion)

    @app.post("/v1/chat/completions")
    async def chat(http: Request) -> Response:
        return await answer(ChatRequest, http, prompts.of_chat)

    @app.post("/v1/responses")
    async def responses(http: Request) -> Response:
        return await answer(ResponsesRequest, http, prompts.of_chat)

    @app.post("/tokenize")
    async def tokenize(http: Request) -> Response:
        return await converted(http, TokenizeRequest, lambda said: JSONResponse(prompts.of_tokenize(said)))

    @app.post("/v1/embeddings")
    async def embeddings() -> Response:
        return _error(404, "embeddings are not served: the model generates text", code="not_supported")

    of_model = {"id": name, "object": "model", "created": created, "owned_by": "sparq-ipu"}

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": [of_model]}

    @app.get("/v1/models/{model:path}")
    async def one_model(model: str) -> Any:
        if model != name:
            raise HTTPException(404, f"the model must be {name}, which is served here")
        return of_model

    @app.get("/")
    async def page() -> Response:
        return Response(
            _PAGE.read_bytes(), media_type="text/html", headers={"Content-Security-Policy": _POLICY}
        )

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse(
            {"status": "ok"} if engine.is_alive else {"status": "closing"}, 200 if engine.is_alive else 503
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(engine.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.exception_handler(StarletteHTTPException)
    async def other(_: Request, wrong: StarletteHTTPException) -> Response:
        answer = _error(wrong.status_code, str(wrong.detail))
        answer.headers.update(wrong.headers or {})
        return answer

    return app


def _error(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
) -> Response:
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse(error(message, kind, code, param), status, headers)


async def _events(
    engine: Engine,
    requests: Sequence[serving.Request],
    queue: asyncio.Queue[tuple[int, serving.Event]],
    http: Request,
) -> AsyncIterator[tuple[int, serving.Event]]:
    """The events of requests, until each has ended. Leaving early cancels those that have not.

    Raises:
        _Gone: the client is.
    """
    left, looked = len(requests), time.monotonic()
    try:
        while left:
            came = None
            with contextlib.suppress(asyncio.TimeoutError):
                came = await asyncio.wait_for(queue.get(), _LOOK_SECONDS)
            if time.monotonic() - looked >= _LOOK_SECONDS:  # also where tokens come one after the other
                looked = time.monotonic()
                if await http.is_disconnected():
                    raise _Gone
            if came is not None:
                left -= not isinstance(came[1], serving.Text)
                yield came
    finally:
        for request in requests:
            engine.cancel(request)


async def _whole(form: Answer, events: Any, n: int, n_prompts: int) -> Response:
    texts: list[list[serving.Text]] = [[] for _ in range(n)]
    ends: list[Any] = [None] * n
    try:
        async for index, event in events:
            if isinstance(event, serving.Text):
                texts[index].append(event)
            elif isinstance(event, serving.Failed):
                return _error(503 if event.is_refused else 500, event.message, "server_error")
            else:
                ends[index] = event
    except _Gone:
        return Response(status_code=499)  # nobody reads it
    finally:
        await events.aclose()
    joined = [
        serving.Text(
            "".join(text.text for text in of_choice),
            [token for text in of_choice for token in text.tokens],
            [entry for text in of_choice for entry in text.log_probabilities],
        )
        for of_choice in texts
    ]
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: JSONResponse(form.whole(joined, ends, n_prompts)))


async def _stream(
    form: Answer, events: Any, n: int, n_prompts: int, with_usage: bool
) -> AsyncIterator[bytes]:
    """Server-sent events."""
    ends: list[Any] = [None] * n
    try:
        for index in range(n):
            for part in form.first(index):
                yield form.sent(part)
        async for index, event in events:
            if isinstance(event, serving.Failed):
                yield form.sent(error(event.message, "server_error"))
                return
            if isinstance(event, serving.Text):
                parts = form.part(index, event)
            else:
                ends[index] = event
                parts = form.end(index, event)
            for part in parts:
                yield form.sent(part)
        for part in form.used(ends, n_prompts) if with_usage else []:
            yield form.sent(part)
        yield form.last
    except _Gone:
        return
    finally:
        await events.aclose()
