"""moto, which has one state per process, served over HTTP or in place of AWS."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import boto3
from moto import mock_aws
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


@contextmanager
def served_moto(bucket: str) -> Iterator[str]:
    """Serve moto on a free port of this machine, with a bucket that outlives this; yields its URL."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    app = _one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket=bucket)
        client.close()
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def mocked_aws() -> Iterator[None]:
    """Respond in place of AWS; other data in moto stays, because other tests may use it."""
    moto = mock_aws()
    moto.start(reset=False)
    try:
        yield
    finally:
        moto.stop(remove_data=False)


_ALONE: Final = threading.Lock()


def _one_at_a_time(app: WSGIApplication) -> WSGIApplication:
    """Serialise the served calls: moto checks a condition and then stores; S3 does both atomically."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with _ALONE:
            answered = app(environ, start_response)
            try:
                return list(answered)
            finally:
                if hasattr(answered, "close"):
                    answered.close()

    return answer
