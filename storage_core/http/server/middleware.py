"""Middleware around all routes: metrics, the session token in responses, and a limit on stalled clients."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockgate.storage_core.http.server.received_body import ClientGoneError, JsonBudget
from lockgate.storage_core.http.server.request_metrics import Metrics
from lockgate.storage_core.journal import propagation

_REFUSED: Final = 400
_FAILED: Final = 500


class RequestMiddleware:
    """Passes requests on to the routes.

    Args:
        app: The routes.
        metrics: Records each request.
        json_budget: What the requests' bodies hold of it is returned after each response.
        idle_s: Time in which a client may receive next to nothing.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, json_budget: JsonBudget, idle_s: float) -> None:
        self._app = app
        self._metrics = metrics
        self._json_budget = json_budget
        self._idle_s = idle_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and record it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(self._metrics, self._idle_s, scope, receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientGoneError:
            exchange.outcome = "gone"
        except BaseException:
            exchange.outcome = "failed"
            raise
        finally:
            self._json_budget.release(scope)
            exchange.record()


class _Exchange:
    """A request and its response."""

    def __init__(self, metrics: Metrics, idle_s: float, scope: Scope, receive: Receive, send: Send) -> None:
        self.outcome = "gone"
        self._metrics = metrics
        self._idle_s = idle_s
        self._scope = scope
        self._receive = receive
        self._send = send
        self._began_s = time.perf_counter()
        self._received = self._sent = 0
        self._awaits_body = _has_body(scope)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            self._awaits_body = self._awaits_body and bool(message.get("more_body", False))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start_response(message)
        else:
            self._sent += len(message.get("body", b""))
        try:
            async with asyncio.timeout(self._idle_s):
                await self._send(message)
        except TimeoutError:
            raise ClientGoneError from None

    def record(self) -> None:
        self._metrics.record(
            getattr(self._scope.get("route"), "name", "unknown"),
            self.outcome,
            seconds=time.perf_counter() - self._began_s,
            received=self._received,
            sent=self._sent,
        )

    def _start_response(self, message: Message) -> None:
        status = message["status"]
        self.outcome = "ok" if status < _REFUSED else "refused" if status < _FAILED else "failed"
        headers = MutableHeaders(scope=message)
        for name, value in propagation.inject().items():
            headers[name] = value
        if self._awaits_body and status >= _REFUSED:
            headers["connection"] = "close"  # the rest of the body stays unread


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
