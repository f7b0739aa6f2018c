# SPDX-License-Identifier: Apache-2.0
"""`sparq-ipu serve` on many machines, one replica on each, chosen by prefix; see docs/serve.md.

serve run sparq_ipu.serve.ray_deployment:deploy machines=2 options="--model PATH"
"""

from __future__ import annotations

import asyncio
import shlex
from typing import Any, AsyncIterator

from fastapi.responses import Response, StreamingResponse
from ray import serve

from sparq_ipu.serve.command import build, parsed
from sparq_ipu.serve.prefixes import beginning

_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
_STRICTLY = {"request_router_class": _ROUTER, "request_router_kwargs": {"num_fallback_replicas": 0}}
#: Ray hands on all requests: a machine that is full answers with status 429
_ALL: dict[str, Any] = {"max_ongoing_requests": 1 << 16}


@serve.deployment(max_replicas_per_node=1, request_router_config=_STRICTLY, **_ALL)
class Machine:
    """The server of one machine. words: of the command line."""

    def __init__(self, words: list[str]):
        self._app, self._engine = build(parsed(words))

    def check_health(self) -> None:
        """Ray starts a replica anew that fails this."""
        if not self._engine.is_alive:
            raise RuntimeError("the engine has ended")

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Any]:
        """A request over HTTP (ASGI): status and headers of the answer, then its body in pieces."""
        messages = [{"type": "http.request", "body": body}]
        sent: asyncio.Queue[Any] = asyncio.Queue()

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.Event().wait()

        task = asyncio.ensure_future(self._app(scope, receive, sent.put))
        task.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            while (message := await sent.get()) is not None:
                is_start = message["type"] == "http.response.start"
                yield (message["status"], message["headers"]) if is_start else message.get("body", b"")
        finally:  # also where the client is gone
            task.cancel()


@serve.deployment(**_ALL)
class Front:
    """The entry for clients: it hands each request to its machine."""

    def __init__(self, machines: Any):
        self._machines = machines

    async def __call__(self, http: Any) -> Response:
        body = await http.body()
        scope = {name: http.scope[name] for name in ("type", "method", "path", "query_string", "headers")}
        machine = self._machines.options(stream=True, session_id=beginning(body))
        parts = machine.answer.remote(scope, body)
        status, headers = await parts.__anext__()
        response = StreamingResponse(parts, status)
        response.raw_headers = headers
        return response


def deploy(arguments: dict[str, str]) -> Any:
    """The application. machines: how many. options: those of `sparq-ipu serve` but for its network."""
    words = shlex.split(arguments.get("options", ""))
    parsed(words)  # errors are reported here
    front: Any = Front  # what decorators make of classes
    machine: Any = Machine
    return front.bind(machine.options(num_replicas=int(arguments["machines"])).bind(words))
