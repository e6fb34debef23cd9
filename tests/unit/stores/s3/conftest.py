"""A server that misbehaves, and stores that reach it by each client, without a proxy of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.request import getproxies_environment

import pytest

from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store
from tests.support.s3.misbehaving_server import RudeServer, rude_server


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the proxies of the environment."""
    for scheme in getproxies_environment():
        for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
            monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def server() -> Iterator[RudeServer]:
    with rude_server() as server:
        yield server


@pytest.fixture(scope="module", params=["crt", "boto3"])
def settings(request: pytest.FixtureRequest, server: RudeServer) -> Iterator[Settings]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield load_settings(s3_endpoint_url=server.endpoint, s3_client=request.param, s3_max_attempts=1)


@pytest.fixture
def store(settings: Settings) -> Store:
    return open_store("s3://lake", settings)
