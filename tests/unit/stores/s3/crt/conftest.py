"""A server, and stores that reach it."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.credentials import Credentials

from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import Store, open_store
from tests.support.blobs.certificates import certify
from tests.support.s3.misbehaving_server import RudeServer, rude_server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[RudeServer]:
    with rude_server() as server:
        yield server


@pytest.fixture
def open_at(server: RudeServer) -> Callable[..., Store]:
    def open_it(credentials: Callable[[], Credentials] | None = None, **settings: object) -> Store:
        given = {"s3_endpoint_url": server.endpoint, "s3_region": "us-east-1", "s3_timeout_s": 5, **settings}
        made = load_settings(**given)  # type: ignore[arg-type]
        return open_store("s3://lake", made.with_s3_credentials(credentials) if credentials else made)

    return open_it


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[RudeServer]:
    """Serve with the certificate `server.pem` in the test's folder, for 127.0.0.1."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certify(tmp_path, "server"))
    with rude_server(tls) as server:
        yield server
