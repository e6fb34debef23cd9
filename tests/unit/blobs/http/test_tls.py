"""A client talks over TLS only to a blob server whose certificate it trusts."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import InvalidInputError, OutcomeUnknownError
from lockgate.storage_core.http import server
from lockgate.storage_core.http.server import tls_context
from tests.support.blobs.certificates import certify
from tests.support.blobs.http_server import PATIENCE_S, client_of, served
from tests.support.blobs.server import BlobWorld, key_of


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return certify(tmp_path, "server")


@pytest.fixture
def url(world: BlobWorld, certificate: tuple[Path, Path]) -> Iterator[str]:
    with served(world.server, tls=tls_context(*certificate)) as url:
        yield url


def test_blobs_are_sent_over_tls_to_a_trusted_server(url: str, certificate: tuple[Path, Path]) -> None:
    data = b"some bytes" * 400_000
    with client_of(url, ca_file=certificate[0]) as client:
        assert client.get(*key_of(client.put(iter([data])))) == data


def test_nothing_is_sent_to_an_untrusted_server(url: str, tmp_path: Path, world: BlobWorld) -> None:
    other, _ = certify(tmp_path, "other")
    for ca_file in (other, None):
        with (
            client_of(url, ca_file=ca_file) as client,
            pytest.raises(InvalidInputError, match="LOCKGATE_BLOB_CA_FILE"),
        ):
            client.put(b"secret")
    assert list(world.server.stores.local.jobs()) == []


def test_tls_to_a_plain_server_and_plain_http_to_a_tls_server_both_fail(
    world: BlobWorld, url: str, certificate: tuple[Path, Path]
) -> None:
    with (
        served(world.server) as plain,
        client_of(plain.replace("http:", "https:")) as client,
        pytest.raises(InvalidInputError, match="https"),
    ):
        client.put(b"a")
    with (
        client_of(url.replace("https:", "http:")) as client,
        pytest.raises(OutcomeUnknownError, match=r"begin with https.*gave no answer"),
    ):
        client.put(b"a")


def test_trusted_certificates_that_cannot_be_read_are_reported_at_the_start(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_bytes(b"no certificate")
    for ca_file in (garbage, tmp_path / "missing.pem", tmp_path):
        with (
            pytest.raises(InvalidInputError, match=r"LOCKGATE_BLOB_CA_FILE: the certificates in .* cannot"),
            client_of("https://127.0.0.1:1", ca_file=ca_file),
        ):
            pass


def test_an_unusable_certificate_is_reported_at_the_start(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    shown, kept = certificate
    both = tmp_path / "both.pem"
    both.write_bytes(kept.read_bytes() + shown.read_bytes())
    tls_context(both, None)
    _, other = certify(tmp_path, "other")
    for pair in ((shown, other), (shown, None), (tmp_path / "missing", kept), (kept, kept)):
        with pytest.raises(InvalidInputError, match="--tls-cert"):
            tls_context(*pair)


def test_an_invalid_url_is_reported_before_the_first_call(tmp_path: Path) -> None:
    for url in ("blobs.example.com", "ftp://blobs", "https://", "https://me:secret@blobs", "http://[::1"):
        with pytest.raises(InvalidInputError, match="LOCKGATE_BLOB_SERVER_URL") as error, client_of(url):
            pass
        assert "secret" not in str(error.value)
    missing = tmp_path / "missing"
    with (
        pytest.raises(InvalidInputError, match="LOCKGATE_BLOB_CA_FILE"),
        client_of("https://blobs", ca_file=missing),
    ):
        pass
    missing.touch()
    with (
        pytest.raises(InvalidInputError, match=r"http://blobs:8410 is plain HTTP.*nothing was sent"),
        client_of("http://blobs:8410", ca_file=missing),
    ):
        pass


def test_headers_that_do_not_end_are_abandoned_over_tls(
    world: BlobWorld, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.5)
    context = ssl.create_default_context(cafile=certificate[0])
    with served(world.server, tls=tls_context(*certificate)) as url:
        with context.wrap_socket(accepted(url), server_hostname="127.0.0.1") as secured:
            secured.sendall(b"GET /health HTTP/1.1\r\n")
            assert secured.recv(1) == b""
        with client_of(url, ca_file=certificate[0]) as client:
            assert client.page("sales") == ()


def accepted(url: str) -> socket.socket:
    """Return a connection without TLS."""
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S)
