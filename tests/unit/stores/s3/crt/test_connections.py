"""What CRT needs before it sends: a connection, a trusted certificate, file descriptors."""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.errors import (
    InvalidInputError,
    StoreUnavailableError,
)
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import Store, open_store
from tests.support.s3.misbehaving_server import RudeServer, sends
from tests.support.s3.store_calls import CALLS

pytestmark = pytest.mark.slow


def test_a_server_that_takes_no_connection_has_changed_nothing(open_at: Callable[..., Store]) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(8):
            waiting.enter_context(client := socket.socket()).setblocking(False)
            client.connect_ex(full.getsockname())
        store = open_at(s3_endpoint_url=f"http://127.0.0.1:{full.getsockname()[1]}", s3_timeout_s=1)
        with pytest.raises(StoreUnavailableError, match=r"Connect timeout .* nothing was changed"):
            store.create("k", b"data")


def _create_with_few_descriptors(url: str) -> None:
    taken = len(list(Path("/dev/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 5, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        open_store("s3://lake", load_settings(s3_endpoint_url=url, s3_timeout_s=5)).create("k", b"data")
    except StoreUnavailableError as error:
        os._exit(0 if "nothing was changed" in str(error) else 1)


def test_a_process_that_is_out_of_descriptors_at_its_first_call_goes_on(server: RudeServer) -> None:
    child = multiprocessing.get_context("spawn").Process(
        target=_create_with_few_descriptors, args=[server.endpoint]
    )
    child.start()
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.parametrize("client", ["crt", "boto3"])
@pytest.mark.parametrize("wrong", ["issuer", "host"])
def test_a_server_whose_certificate_is_not_trusted_gets_no_request(
    tls_server: RudeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, client: Any
) -> None:
    url = tls_server.endpoint
    if wrong == "host":
        url = url.replace("127.0.0.1", "localhost")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "server.pem"))
    store = open_store("s3://lake", load_settings(s3_endpoint_url=url, s3_client=client))
    for change in (store.put, store.create):
        with pytest.raises(
            StoreUnavailableError, match=r"SSL validation .*; nothing was changed; .*AWS_CA_BUNDLE"
        ):
            change("k", b"data")
    assert tls_server.seen == []


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_a_server_with_a_certificate_of_the_bundle_is_trusted(
    tls_server: RudeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    store, settings = "s3://lake", load_settings(s3_endpoint_url=tls_server.endpoint)
    with pytest.raises(StoreUnavailableError):
        open_store(store, settings).get("k")
    monkeypatch.setenv(variable, str(tmp_path / "server.pem"))
    tls_server.manners = [sends(CALLS["get"].answer, keeps=True)]
    assert open_store(store, settings).get("k") == b"data"
    assert b"CRTS3NativeClient" in tls_server.seen[0][1]


@pytest.mark.parametrize("client", ["crt", "boto3"])
@pytest.mark.parametrize("text", ["", "no certificate", None])
def test_certificates_that_cannot_be_read_are_named(
    open_at: Callable[..., Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    client: str,
) -> None:
    if text is not None:
        (tmp_path / "ca.pem").write_text(text)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    store = open_at(s3_endpoint_url="https://127.0.0.1:1", s3_client=client)
    with pytest.raises(InvalidInputError, match=r"ca.pem cannot be read .*; check AWS_CA_BUNDLE"):
        store.create("k", b"data")
