"""The response header `Lockgate-Token`: with it, a caller's next read is never of an older state.

The caller sends it back as the parameter `at_least` or the header `Lockgate-At-Least`, to any API server.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.errors import LockgateError

TOKEN: Final = "lockgate-token"  # noqa: S105 - the name of a header


class TokenMiddleware:
    """Adds the token to the answers of routes that read the journal."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add the token of what was read for it."""

        async def with_token(message: Message) -> None:
            if message["type"] == "http.response.start":
                # After the route's reads, so that it includes what they have seen.
                reads: Reads | None = getattr(Request(scope).state, "lockgate_reads", None)
                if reads is not None:
                    with suppress(LockgateError):  # the journal cannot be reached, as the answer says
                        if token := reads.token:
                            MutableHeaders(scope=message)[TOKEN] = token
            await send(message)

        await self._app(scope, receive, with_token if scope["type"] == "http" else send)
