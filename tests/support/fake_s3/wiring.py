"""Connect the S3 clients to the fake in this process, before they open a socket.

boto3 is connected by its own event, AWS CRT in place of its transports: serializers, parsers, retries and
errors are the product's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from threading import Thread
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import botocore.handlers
from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError

from lockgate.storage_core.stores.s3.crt.answer import Answer
from lockgate.storage_core.stores.s3.crt.connections import Connections
from lockgate.storage_core.stores.s3.crt.endpoint import Endpoint
from lockgate.storage_core.stores.s3.crt.operation import Message
from tests.support.fake_s3.server import FakeS3

_DOMAIN: Final = ".fake-s3.test"
_served: Final[dict[str, FakeS3]] = {}


class _Prepared(NamedTuple):
    """A request in the form of botocore's."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes


def _answer(request: Any, **_: Any) -> AWSResponse | None:
    """Answer for the endpoints that are served; anything else goes its way."""
    host = urlsplit(request.url).hostname or ""
    if not host.endswith(_DOMAIN):
        return None
    fake = _served.get(host)
    if fake is None:
        raise EndpointConnectionError(endpoint_url=request.url, error="the fake is not served any more")
    return fake.answer(request)


# Sessions take their handlers from this list when they are made; the first test may make the default one.
botocore.handlers.BUILTIN_HANDLERS.append(("before-send.s3", _answer))

_reach, _transport = Connections.reach, Connections.transport


def _reach_fake(self: Connections, endpoint: Endpoint) -> None:
    if not endpoint.host.endswith(_DOMAIN):
        _reach(self, endpoint)


def _transport_to_fake(self: Connections, endpoint: Endpoint) -> Any:
    return _FakeTransport(endpoint) if endpoint.host.endswith(_DOMAIN) else _transport(self, endpoint)


Connections.reach = _reach_fake  # type: ignore[method-assign] # for all tests of this process
Connections.transport = _transport_to_fake  # type: ignore[method-assign] # for all tests of this process


class _FakeTransport:
    """Sends requests to the fake that is served at an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = f"{endpoint.scheme}://{endpoint.host}{endpoint.path}"

    def send(self, message: Message, arrived: Callable[[], None] = lambda: None) -> Callable[[], Answer]:
        # Length and signature are CRT's work.
        headers = {
            **dict(message.headers),
            "Content-Length": str(len(message.body)),
            "Authorization": "AWS4-HMAC-SHA256 ",
        }
        request = _Prepared(message.method, self._url + message.path, headers, message.body)
        found: Future[Answer] = Future()

        def answer() -> None:
            try:
                response = _answer(request)
                assert response is not None
                answer = Answer.of(response.status_code, list(response.headers.items()), response.content)
                found.set_result(answer)
            except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
                found.set_exception(error)
            arrived()

        # As CRT does, it answers from another thread.
        Thread(target=copy_context().run, args=(answer,), daemon=True).start()
        return found.result


@contextmanager
def served(fake: FakeS3) -> Iterator[str]:
    """Serve a fake at a private endpoint; yields the URL.

    Clients are made per endpoint: serving one fake at two endpoints gives two processes' worth of clients.
    """
    # The first free name: boto3 takes its time to make clients, and those of an earlier test serve again.
    host = next(name for name in (f"s3-{n}{_DOMAIN}" for n in range(100)) if name not in _served)
    _served[host] = fake
    try:
        # Over TLS, bodies are not hashed a second time for the signature.
        yield f"https://{host}"
    finally:
        del _served[host]
