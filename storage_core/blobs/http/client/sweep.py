"""A sweep of a blob server, asked for over HTTP: lines tell how far it is, the last one what it did."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import urllib3

from lockgate.storage_core.blobs.http.client.connection import Connection
from lockgate.storage_core.blobs.http.messages import Message, Trouble, error_of
from lockgate.storage_core.blobs.reports import SweepReport
from lockgate.storage_core.concurrency import Progress
from lockgate.storage_core.errors import OutcomeUnknownError


class SweepOrder(Message, frozen=True):
    """What to do; see `sweep.sweep`."""

    dry_run: bool
    orphans: bool | None = None


class SweepLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the answer: how far it is, or how it ended. An empty one only says that the server lives."""

    step: str = ""
    done: int = 0
    total: int = 0
    report: SweepReport | None = None
    trouble: Trouble | None = None


def sweep_there(connection: Connection, order: SweepOrder, progress: Progress) -> SweepReport:
    """Have a server sweep, once.

    Raises:
        OutcomeUnknownError: Its answer broke off; it may still be sweeping, which does no harm to another.
        LockgateError: What the sweep raised.
    """
    headers = {"content-type": "application/json"}
    with connection.exchange("POST", "/sweep", headers=headers, body=msgspec.json.encode(order)) as answer:
        for line in _lines(answer):
            if line.trouble is not None:
                raise error_of(line.trouble)
            if line.report is not None:
                return line.report
            if line.step:
                progress(line.step, line.done, line.total)
    raise OutcomeUnknownError(
        f"sweep of {connection.url}: the answer ends without a report; what was swept is swept; sweep again"
    )


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[SweepLine]:
    held = b""
    for piece in answer.stream():
        *lines, held = (held + piece).split(b"\n")
        yield from (msgspec.json.decode(line, type=SweepLine) for line in lines)
