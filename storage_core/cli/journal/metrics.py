"""`lockgate journal metrics`: serve the journal's metrics for Prometheus."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import Annotated, Final

import typer

from lockgate.storage_core.cli.journal.observers import journal_reads
from lockgate.storage_core.cli.render import print_line
from lockgate.storage_core.errors import InvalidInputError, JournalUnavailableError, StateLostError

REFRESH_S: Final = 5.0
"""Interval of comparisons of observers with the primary; other metrics are read at each scrape."""


def serve(
    *,
    port: Annotated[int, typer.Option(help="Port to bind; 0: any free port.", min=0, max=65_535)] = 9464,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
) -> None:
    """Serve the journal's metrics for Prometheus until stopped: entries, leases, safe mode, observers' lag.

    Group sizes, write times, waits and fallbacks belong to each process, which records them in OpenTelemetry.
    """
    from lockgate.storage_core.journal.metrics_endpoint import serve_metrics

    with journal_reads() as client, ExitStack() as stack:
        try:
            url = stack.enter_context(serve_metrics(client.journal, port=port, host=host))
        except OSError as error:
            raise InvalidInputError(f"--host {host} --port {port}: {error.strerror}; name another") from None
        print_line(url)
        stopped = threading.Event()
        while not stopped.wait(REFRESH_S):
            with suppress(JournalUnavailableError, StateLostError):  # reported as `up` 0
                client.observers()
