"""moto, which has one state per process, served over HTTP or in place of AWS."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import boto3
import pytest
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber
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
    """Respond to boto3 in place of AWS; other data in moto stays, because other tests may use it."""
    moto = mock_aws()
    moto.start(reset=False)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCKGATE_S3_CLIENT", "boto3")
            patch.setattr(
                BotocoreStubber, "process_request", _with_its_length(BotocoreStubber.process_request)
            )
            yield
    finally:
        moto.stop(remove_data=False)


def _with_its_length(process: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that adds the length to moto's answers, which a server always sends."""

    def answer(stubber: BotocoreStubber, request: Any) -> Any:
        answered = process(stubber, request)
        if answered is None:
            return None
        status, headers, body = answered
        data = body.encode() if isinstance(body, str) else body
        return status, {"Content-Length": str(len(data)), **headers}, data

    return answer


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
