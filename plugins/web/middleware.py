"""What every answer has: headers for the browser, an entity tag, and the token of the state that was read.

With the header `Lockgate-Token`, a caller's next read is never of an older state. The caller sends it back as
the parameter `at_least` or the header `Lockgate-At-Least`, to any API server.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.errors import LockgateError

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

_TAGGED: Final = ("application/json", "text/html", "image/svg+xml")
_OK: Final = 200
_NOT_MODIFIED: Final = 304


class AnswerMiddleware:
    """Completes the headers of answers, and answers 304 to a client that has the body.

    A route may set its own `Cache-Control` or entity tag. A page that is sent in parts has a
    `Content-Encoding` and gets no tag: its beginning must not wait for its end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and complete its answer."""
        await self._app(scope, receive, _Answer(scope, send) if scope["type"] == "http" else send)


class _Answer:
    """Sends the messages of one answer; a body that gets a tag is collected first."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(ALWAYS)
            self._add_token(headers)
            if self._is_tagged(message["status"], headers):
                self._start = message
                return
            headers.setdefault("cache-control", _REVALIDATED if "etag" in headers else "no-store")
        if self._start is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if not message.get("more_body", False):
            self._tag(self._start)
            await self._send(self._start)
            await self._send({"type": "http.response.body", "body": bytes(self._body)})

    def _add_token(self, headers: MutableHeaders) -> None:
        # After the route's reads, so that it includes what they have seen.
        reads: Reads | None = getattr(Request(self._scope).state, "lockgate_reads", None)
        if reads is not None:
            with suppress(LockgateError):  # the journal cannot be reached, as the answer says
                if token := reads.token:
                    headers["lockgate-token"] = token

    def _is_tagged(self, status: int, headers: Headers) -> bool:
        is_read = self._scope["method"] in {"GET", "HEAD"} and status == _OK
        is_whole = "etag" not in headers and "content-encoding" not in headers
        return is_read and is_whole and headers.get("content-type", "").startswith(_TAGGED)

    def _tag(self, start: Message) -> None:
        tag = f'W/"{hashlib.sha256(self._body).hexdigest()[:32]}"'
        headers = MutableHeaders(scope=start)
        headers["etag"] = tag
        headers.setdefault("cache-control", _REVALIDATED)
        known = Headers(scope=self._scope).get("if-none-match", "")
        if known == "*" or tag in (each.strip() for each in known.split(",")):
            start["status"], self._body = _NOT_MODIFIED, bytearray()
            del headers["content-length"], headers["content-type"]
