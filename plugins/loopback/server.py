"""The application on a loopback socket, for clients that know the token of this process."""

from __future__ import annotations

import getpass
import hmac
import secrets
import socket
import webbrowser
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qsl, urlencode

from fastapi import HTTPException, Request
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lockgate.plugins.loopback.actions import InProcess, progress_routes
from lockgate.plugins.web.access import Dependency, Host
from lockgate.plugins.web.api.actions import ACTIONS
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.http.server import http_server, listen
from lockgate.storage_core.settings import Settings, load_settings

PREFIX: Final = "/lockgate"
_HOST: Final = "127.0.0.1"
_TOKEN: Final = "token"  # noqa: S105 - the name of a query parameter


class Loopback:
    """The pages on 127.0.0.1; use it as a context manager.

    Args:
        port: Port to bind; 0 takes a free one.
        destinations: Destinations that may be read beside those in the journal.
        allow_actions: Whether the pages may start actions; they are read-only otherwise.
        settings: Settings of this process, by default those of the environment.

    Attributes:
        address: Address with the token.
    """

    def __init__(
        self,
        port: int,
        *,
        destinations: Sequence[str] = (),
        allow_actions: bool = False,
        settings: Settings | None = None,
    ) -> None:
        self._socket: socket.socket = listen(_HOST, port, allow_remote=False)
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_urlsafe(32)
        self.address = f"http://{_HOST}:{self.port}{PREFIX}/?{_TOKEN}={self.token}"
        settings = settings or load_settings()
        self._actions = InProcess(settings, PREFIX) if allow_actions else None
        self.app = _application(settings, self.port, self.token, self._actions, tuple(destinations))

    @property
    def running_actions(self) -> int:
        """Number of actions that have not ended."""
        return 0 if self._actions is None else self._actions.running

    def open_browser(self) -> None:
        """Open the pages in the user's browser, if there is one."""
        webbrowser.open(self.address)

    def serve(self) -> None:
        """Serve until Ctrl-C."""
        http_server(self.app).run(sockets=[self._socket])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def _application(
    settings: Settings, port: int, token: str, actions: InProcess | None, destinations: tuple[str, ...]
) -> Starlette:
    cookie = f"lockgate-{port}"  # browsers send a cookie to every port of a host
    may_read = _holder_of(token, cookie)
    user = getpass.getuser()
    app = web_app(
        Host(
            may_read=may_read,
            may_act=dict.fromkeys(ACTIONS, may_read) if actions else {},
            offers=lambda _: frozenset(ACTIONS if actions else ()),
            user=lambda _: user,
            actions=actions,
            destinations=destinations,
        ),
        Reads(settings, destinations=destinations),
    )
    if actions is not None:
        app.include_router(progress_routes(actions), prefix="/api/v1")
    return Starlette(
        routes=[Route("/", lambda _: RedirectResponse(f"{PREFIX}/")), Mount(PREFIX, app)],
        middleware=[Middleware(_Door, port=port, token=token, cookie=cookie)],
    )


def _holder_of(token: str, cookie: str) -> Dependency:
    """Return the check that a request carries the token, as a cookie or as a bearer token."""

    def check(request: Request) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer if scheme.lower() == "bearer" else request.cookies.get(cookie, "")
        if not _is_same(given, token):
            raise HTTPException(
                401,
                "there is no valid token; nothing was read; open the address that `lockgate ui` printed",
                {"www-authenticate": "Bearer"},
            )

    return check


class _Door:
    """Refuses other hosts, and exchanges the token in an address for a cookie.

    A page of another site can let its own name resolve to 127.0.0.1 (DNS rebinding), but the browser then
    sends that name as `Host`.
    """

    def __init__(self, app: ASGIApp, *, port: int, token: str, cookie: str) -> None:
        self._app = app
        self._hosts = {f"{host}:{port}" for host in (_HOST, "localhost")}
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            return
        if Headers(scope=scope).get("host", "").lower() not in self._hosts:
            refusal = PlainTextResponse("this server answers to 127.0.0.1 and localhost only\n", 403)
            await refusal(scope, receive, send)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get(_TOKEN)
        if given is None or scope["method"] != "GET" or not _is_same(given, self._token):
            await self._app(scope, receive, send)
            return
        left = urlencode([(name, value) for name, value in query if name != _TOKEN])
        # A path that begins with // would lead to another host.
        path = f"/{scope['path'].lstrip('/')}"
        answer = RedirectResponse(f"{path}?{left}" if left else path, 303)
        answer.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="strict")
        answer.headers.update({"cache-control": "no-store", "referrer-policy": "no-referrer"})
        await answer(scope, receive, send)


def _is_same(given: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())
