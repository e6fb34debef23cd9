"""`lockgate journal metrics`: the journal's figures where Prometheus fetches them."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import Annotated, Final

import typer

from lockgate.storage_core.cli.render import print_line
from lockgate.storage_core.errors import ConflictError, InvalidInputError, JournalUnavailableError

REFRESH_S: Final = 5.0
"""Observers are compared with the primary this often; all else is asked when Prometheus fetches it."""


def serve(
    *,
    port: Annotated[int, typer.Option(help="0 takes one that is free.", min=0, max=65_535)] = 9464,
    host: Annotated[str, typer.Option(help="Whose address to listen on.")] = "127.0.0.1",
) -> None:
    """Serve the journal's figures for Prometheus, until stopped: entries, leases, safe mode, observers' lag.

    Group sizes, write times, waits and fallbacks are each process's own: those are told to OpenTelemetry.
    """
    from lockgate.storage_core.journal.metrics_endpoint import serve_metrics  # noqa: PLC0415 - slow to import
    from lockgate.storage_core.journal.observers import configured_reads  # noqa: PLC0415
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415

    client = configured_reads(load_settings())
    if client is None:
        raise ConflictError("LOCKGATE_JOURNAL_URL=none: there is no journal to tell of; nothing was done")
    with client, ExitStack() as serving:
        try:
            url = serving.enter_context(serve_metrics(client.journal, port=port, host=host))
        except OSError as error:
            raise InvalidInputError(f"--host {host} --port {port}: {error.strerror}; name another") from None
        print_line(url)
        stopped = threading.Event()
        while not stopped.wait(REFRESH_S):
            with suppress(JournalUnavailableError):  # told as `up` 0
                client.observers()
