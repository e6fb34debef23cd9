"""Connect botocore to the fake by its own event, before it opens a socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import botocore.handlers
from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError

from tests.support.fake_s3.server import FakeS3

_DOMAIN: Final = ".fake-s3.test"
_served: Final[dict[str, FakeS3]] = {}


def _answer(request: Any, **_: Any) -> AWSResponse | None:
    """Answer for the endpoints that are served; anything else goes its way."""
    host = urlsplit(request.url).hostname or ""
    if not host.endswith(_DOMAIN):
        return None
    fake = _served.get(host)
    if fake is None:
        raise EndpointConnectionError(endpoint_url=request.url, error="the fake is not served any more")
    return fake.answer(request)


@contextmanager
def served(fake: FakeS3) -> Iterator[str]:
    """Serve a fake at an private endpoint; yields the URL.

    Clients are made per endpoint: serving one fake at two endpoints gives two processes' worth of clients.
    """
    # The first free name: boto3 takes its time to make clients, and those of an earlier test serve again.
    host = next(name for name in (f"s3-{n}{_DOMAIN}" for n in range(100)) if name not in _served)
    hook = ("before-send.s3", _answer)
    # Sessions take their handlers from this list when they are made.
    if hook not in botocore.handlers.BUILTIN_HANDLERS:
        botocore.handlers.BUILTIN_HANDLERS.append(hook)
    _served[host] = fake
    try:
        # Over TLS, bodies are not hashed a second time for the signature.
        yield f"https://{host}"
    finally:
        del _served[host]
