"""The proxy of benchmarks delays each request once, and counts it by its kind."""

from __future__ import annotations

import time
from http.client import HTTPConnection

import pytest

from benchmarks.peers.proxy import delaying_proxy, kind_of, requests_at
from tests.support.s3.misbehaving_server import rude_server


def test_each_request_is_delayed_once_and_counted_and_its_body_arrives() -> None:
    with rude_server() as server, delaying_proxy(server.endpoint, 50) as proxy:
        connection = HTTPConnection(proxy.removeprefix("http://"))
        began_s = time.perf_counter()
        for _ in range(3):
            connection.request("PUT", "/bucket/key", b"x" * 100_000)
            assert connection.getresponse().read()
        taken_s = time.perf_counter() - began_s
        connection.request("GET", "/bucket?list-type=2")
        connection.getresponse().read()
        connection.close()

        assert requests_at(proxy) == {"PUT": 3, "LIST": 1}
        assert taken_s >= 0.15
        assert [len(body) for _, _, body in server.seen] == [100_000] * 3 + [0]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"GET /bucket?list-type=2&prefix=a HTTP/1.1", "LIST"),
        (b"GET /bucket/?uploads HTTP/1.1", "LIST"),
        (b"GET /bucket/a/key HTTP/1.1", "GET"),
        (b"POST /bucket/key?uploads HTTP/1.1", "POST"),
        (b"HEAD /bucket/key HTTP/1.1", "HEAD"),
    ],
)
def test_a_listing_is_not_counted_as_a_read(line: bytes, kind: str) -> None:
    assert kind_of(line + b"\r\nHost: a\r\n\r\n") == kind
