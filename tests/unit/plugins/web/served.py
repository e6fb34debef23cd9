"""The application of a test's settings, as a reader and as an actor see it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from lockgate.plugins.web.access import ActionName, ActionRequest, ActionStarted, Host
from lockgate.plugins.web.api.actions import ACTIONS
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.settings import Settings

API = "/api/v1"
JSON = {"content-type": "application/json"}


class Recorded:
    """Actions that are recorded and not done."""

    def __init__(self) -> None:
        self.started: list[tuple[ActionName, ActionRequest, str]] = []

    def start(self, action: ActionName, request: ActionRequest, user: str) -> ActionStarted:
        self.started.append((action, request, user))
        return ActionStarted(action=action, dry_run=False, text="Started.", href="/run/1")


def allow() -> None:
    """Let every caller in."""


def refuse() -> None:
    raise HTTPException(403, "you may not act")


def host(actions: Recorded | None = None, may_act: Callable[[], None] = allow) -> Host:
    return Host(
        may_read=allow,
        may_act=dict.fromkeys(ACTIONS, may_act),
        offers=lambda _: frozenset(ACTIONS),
        user=lambda _: "tester",
        actions=actions,
    )


def application(settings: Settings, served_by: Host | None = None) -> FastAPI:
    return web_app(served_by or host(), Reads(settings))


def client(settings: Settings, served_by: Host | None = None) -> TestClient:
    app = _shared() if served_by is None else web_app(served_by)
    app.state.reads = Reads(settings)
    return TestClient(app, raise_server_exceptions=False)


@cache
def _shared() -> FastAPI:
    """Return the application without reads: its routes take a tenth of a second, so tests share them."""
    return web_app(host())
