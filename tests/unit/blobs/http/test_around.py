"""The middleware around the routes: mounting in an application, propagated stamps, forks, faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import urllib3
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from lockgate.storage_core.blobs.http.access import (
    NO_JOB_YET,
    RequestedAccess,
)
from lockgate.storage_core.blobs.http.app import blob_app
from lockgate.storage_core.blobs.open_blobs import open_server
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.errors import AccessDeniedError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.http.tokens import UnauthenticatedError
from lockgate.storage_core.journal import Stamp
from lockgate.storage_core.settings import Settings
from tests.support.blobs.http_server import client_of, served, serving
from tests.support.blobs.server import BlobWorld, key_of


@pytest.fixture
def server(settings: Settings) -> Iterator[BlobServer]:
    """Return a server over the journal of this process, whose stamps are propagated."""
    with open_server(settings) as server:
        yield server


def test_another_application_mounts_it_under_its_own_permissions(world: BlobWorld) -> None:
    requested: list[RequestedAccess] = []

    async def authorise(request: Request, access: RequestedAccess) -> None:
        requested.append(access)
        if access.changes and access.job_id != "sales":
            raise AccessDeniedError(f"viewers do not change {access.job_id}; nothing was done")

    app = FastAPI()
    app.mount("/lockgate/blobs", blob_app(world.server, authorise))
    with serving(app) as url, client_of(f"{url}/lockgate/blobs") as client:
        blob = client.put(b"a", job_id="sales")
        assert client.get(*key_of(blob)) == b"a"
        with pytest.raises(AccessDeniedError, match="viewers do not change flights"):
            client.put(b"a", job_id="flights")
        figures = urllib3.request("GET", f"{url}/lockgate/blobs/metrics").data.decode()
    assert requested == [
        RequestedAccess(job_id="sales", changes=True),
        RequestedAccess(job_id="sales", changes=False),
        RequestedAccess(job_id="flights", changes=True),
    ]
    assert 'lockgate_blobs_requests_total{outcome="refused",verb="put"} 1.0' in figures


def test_stamps_seen_by_a_client_reach_the_server_and_vice_versa(server: BlobServer) -> None:
    seen = {"lockgate-at-least": f"main@{server.stores.journal.identity}=1.77"}
    with served(server) as url:
        answer = urllib3.request("GET", f"{url}/jobs/sales/blobs", headers=seen)
        assert answer.headers["lockgate-at-least"] == f"main@{server.stores.journal.identity}=1.77"
    assert server.stores.journal.seen == Stamp(1, 77)


def test_stamps_of_an_unauthenticated_request_are_ignored(server: BlobServer) -> None:
    async def refuse_everyone(request: Request, access: RequestedAccess) -> None:
        raise UnauthenticatedError("who are you?")

    seen = {"lockgate-at-least": f"main@{server.stores.journal.identity}=1.77"}
    with served(server, refuse_everyone) as url:
        assert urllib3.request("GET", f"{url}/jobs/sales/blobs", headers=seen).status == 401
    assert server.stores.journal.seen == Stamp()


def test_stamps_of_a_request_with_partial_access_are_ignored(server: BlobServer) -> None:
    async def of_sales(request: Request, access: RequestedAccess) -> None:
        if access.job_id not in {"sales", NO_JOB_YET}:
            raise AccessDeniedError("sales only; nothing was done")

    seen = {"lockgate-at-least": f"main@{server.stores.journal.identity}=1.77"}
    with served(server, of_sales) as url:
        answer = urllib3.request("POST", f"{url}/owners/drop", headers=seen, body=b'{"owner": "viewer:1"}')
        assert answer.status == 200
        assert "=1.77" not in answer.headers.get("lockgate-at-least", "")
    assert server.stores.journal.seen < Stamp(1, 77)


def test_an_internal_error_is_reported_without_its_text_and_with_an_unknown_outcome(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def meet_a_fault(*_: object, **__: object) -> None:
        raise RuntimeError("of the inside")

    monkeypatch.setattr(world.server, "refer", meet_a_fault)
    blob = world.server.put(b"a")
    with (
        served(world.server) as url,
        client_of(url) as client,
        pytest.raises(OutcomeUnknownError, match="internal error of the blob server; see its log") as refused,
    ):
        client.refer(*key_of(blob), "viewer:1")
    assert "of the inside" not in str(refused.value)
    assert "of the inside" in caplog.text


def test_a_gateway_timeout_leaves_the_outcome_unknown() -> None:
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "PUT", "POST"])
    async def give_up(path: str) -> PlainTextResponse:
        return PlainTextResponse(f"upstream connect error, or reset: {path}", 504)

    with serving(app) as url, client_of(url) as client:
        for call in (
            lambda: client.put(b"a", job_id="sales"),
            lambda: client.fail("sales"),
            lambda: client.finish("sales"),
        ):
            with pytest.raises(OutcomeUnknownError, match="not by a blob server; it may have been done"):
                call()
        with pytest.raises(StoreUnavailableError, match="nothing was changed"):
            client.page("sales")
