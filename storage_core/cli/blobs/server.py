"""`lockgate blob-server`: serve blobs over HTTP until stopped."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from lockgate.storage_core.cli.render import print_line
from lockgate.storage_core.errors import InvalidInputError, LockgateError, MissingPartError

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.server.server import BlobServer

LOG: Final = logging.getLogger("lockgate.blobs")
PORT: Final = 8410


def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Address to bind; one that is not loopback requires --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0: any free port.", min=0, max=65_535)] = PORT,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="PEM certificate; enables HTTPS.")
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="PEM key; by default in the file of --tls-cert."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Lines `token job-pattern…`; read again after a change."
        ),
    ] = None,
) -> None:
    """Serve blobs over HTTP until stopped; after SIGTERM running requests are completed.

    Blobs are stored in LOCKGATE_BLOB_DIR and LOCKGATE_BLOB_STORE_URL, their metadata in the journal.
    """
    from lockgate.storage_core.blobs.server_or_client import open_server
    from lockgate.storage_core.settings import load_settings

    try:
        from lockgate.storage_core.blobs.http.server.app import blob_app
        from lockgate.storage_core.blobs.http.server.auth.bearer import BearerTokens
        from lockgate.storage_core.blobs.http.server.auth.policy import allow_all
        from lockgate.storage_core.http.server.listen import (
            http_server,
            listen,
            raise_file_limit,
            tls_context,
        )
        from lockgate.storage_core.http.server.token_file import TokenFile
    except ImportError as error:
        raise MissingPartError(
            f"the blob server needs {error.name}: run `pip install 'lockgate[blobs]'`; nothing was started"
        ) from None

    if tls_key is not None and tls_cert is None:
        raise InvalidInputError(
            "--tls-key without --tls-cert: name the certificate as well; nothing was started"
        )
    tls = None if tls_cert is None else tls_context(tls_cert, tls_key)
    authorise = allow_all if token_file is None else BearerTokens(TokenFile(token_file))
    settings = load_settings()
    with open_server(settings) as server:
        idle_s = settings.blob_server_idle_s
        app = blob_app(server, authorise, max_bytes=settings.blob_max_bytes, idle_s=idle_s)
        with listen(host, port, allow_remote=token_file is not None, idle_s=idle_s) as bound:
            url_host = f"[{host}]" if ":" in host else host
            print_line(f"{'http' if tls is None else 'https'}://{url_host}:{bound.getsockname()[1]}")
            sys.stdout.flush()  # the parent process may wait for this line
            if tls is None and token_file is not None:
                LOG.warning(
                    "tokens and blobs are sent unencrypted: use --tls-cert, or a proxy with TLS in front"
                )
            threading.Thread(target=_recover, args=(server,), name="blob-recovery", daemon=True).start()
            with _exit_on_sigterm():
                raise_file_limit(settings.blob_server_connections)
                http_server(
                    app,
                    tls,
                    connections=settings.blob_server_connections,
                    setting="LOCKGATE_BLOB_SERVER_CONNECTIONS",
                ).run(sockets=[bound])


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Raise `SystemExit` at SIGTERM, so that all is closed: uvicorn re-raises the signal at its end."""

    def exit_(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    previous = signal.signal(signal.SIGTERM, exit_)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _recover(server: BlobServer) -> None:
    """Stage bytes without a row, which an earlier server left, while requests are served."""
    from lockgate.storage_core.blobs.server.startup import recover

    try:
        recover(server.holdings)
    except LockgateError as error:
        LOG.warning("%s; the next sweep stages bytes without a row instead", error)
