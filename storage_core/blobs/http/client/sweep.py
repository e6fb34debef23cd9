"""Request a sweep of a blob server over HTTP, and report its progress."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import urllib3

from lockgate.storage_core.blobs.http.messages import SweepLine, SweepRequest
from lockgate.storage_core.blobs.reports import BlobSweepReport
from lockgate.storage_core.concurrency import Progress
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.http.connection import Connection
from lockgate.storage_core.http.problems import error_of


def request_sweep(connection: Connection, request: SweepRequest, progress: Progress) -> BlobSweepReport:
    """Request one sweep, and return its report.

    Raises:
        OutcomeUnknownError: The response broke off; the server may still be sweeping. Sweep again: two sweeps
            at once do no harm.
        LockgateError: The sweep raised it.
    """
    headers = {"content-type": "application/json"}
    body = msgspec.json.encode(request)
    with connection.request("POST", "/sweep", headers=headers, body=body) as response:
        for line in _lines(response):
            if line.error is not None:
                raise error_of(line.error)
            if line.report is not None:
                return line.report
            if line.step:
                progress(line.step, line.done, line.total)
    raise OutcomeUnknownError(
        f"sweep of {connection.url}: the response ends without a report; what it deleted stays deleted; "
        "sweep again"
    )


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[SweepLine]:
    rest = b""
    for piece in response.stream():
        *lines, rest = (rest + piece).split(b"\n")
        yield from (decode_json(line, SweepLine) for line in lines)
