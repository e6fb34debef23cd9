"""Headers of every response: nothing is shared between users, and a page runs only its own scripts."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'self'",
    )
)
"""Content security policy: no inline script, and frames of the same origin only, as Airflow's are."""

ALWAYS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
_REVALIDATED: Final = "private, no-cache"
"""A browser may keep an answer for its own user, and asks with the entity tag before it shows it again."""


class HeadersMiddleware:
    """Sets the headers; a route may set its own `Cache-Control`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and set the headers of its response."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(ALWAYS)
                headers.setdefault("cache-control", _REVALIDATED if "etag" in headers else "no-store")
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
