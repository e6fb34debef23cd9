"""`If-None-Match` and `If-Match`: applied as by AWS, or silently ignored as by some compatible stores."""

from __future__ import annotations

from tests.support.fake_s3.options import Options
from tests.support.fake_s3.refusal import Refusal, no_such_key, precondition_failed, unknown
from tests.support.fake_s3.state import StoredObject
from tests.support.fake_s3.wire import Request


def check_write(request: Request, standing: StoredObject | None, options: Options) -> None:
    """Check the conditions of a PUT or a completion against the object at its key."""
    absent, version = request.headers.get("if-none-match"), request.headers.get("if-match")
    if absent is not None and version is not None:
        raise Refusal(501, "NotImplemented", "If-Match and If-None-Match exclude each other")
    if absent is not None:
        if absent != "*":
            raise unknown(f"If-None-Match: {absent}")
        if options.conditional_create and standing is not None:
            raise precondition_failed()
    if version is not None and options.conditional_put:
        check_version(version, standing, request.key)


def check_delete(version: str | None, standing: StoredObject | None, key: str, options: Options) -> None:
    """Judge the deletion of one key."""
    if version is not None and options.conditional_delete:
        check_version(version, standing, key)


def check_version(wanted: str, standing: StoredObject | None, key: str) -> None:
    if standing is None:
        raise no_such_key(key)
    if wanted != "*" and wanted.strip('"') != standing.etag:
        raise precondition_failed()
