"""Around all routes: what is counted, what travels with every answer, and what a stalled client costs."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockgate.storage_core.blobs.http.server.request_body import ClientGoneError
from lockgate.storage_core.blobs.http.server.service import Service
from lockgate.storage_core.journal import propagation

_REFUSED: Final = 400
_FAILED: Final = 500


class RequestMiddleware:
    """Lets requests through to the routes."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        passage = _Passage(self._service, scope, receive, send)
        try:
            await self._app(scope, passage.receive, passage.send)
        except ClientGoneError:
            passage.outcome = "gone"
        except BaseException:
            passage.outcome = "failed"
            raise
        finally:
            passage.count()


class _Passage:
    """A request on its way, and its answer on the way back."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.outcome = "gone"
        self._service = service
        self._scope = scope
        self._receive = receive
        self._send = send
        self._began_s = time.perf_counter()
        self._came = self._went = 0
        self._awaits_body = _has_body(scope)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._came += len(message.get("body", b""))
            self._awaits_body = self._awaits_body and bool(message.get("more_body", False))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin(message)
        else:
            self._went += len(message.get("body", b""))
        try:
            async with asyncio.timeout(self._service.idle_s):
                await self._send(message)
        except TimeoutError:
            raise ClientGoneError from None

    def count(self) -> None:
        route = self._scope.get("route")
        verb = getattr(route, "name", "unknown")
        self._service.figures.answered(
            verb,
            self.outcome,
            seconds=time.perf_counter() - self._began_s,
            came=self._came,
            went=self._went,
        )

    def _begin(self, message: Message) -> None:
        status = message["status"]
        self.outcome = "ok" if status < _REFUSED else "refused" if status < _FAILED else "failed"
        headers = MutableHeaders(scope=message)
        for name, value in propagation.inject().items():
            headers[name] = value
        if self._awaits_body and status >= _REFUSED:
            headers["connection"] = "close"  # the rest of the body is not read, only to be thrown away


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
