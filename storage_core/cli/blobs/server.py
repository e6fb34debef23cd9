"""`lockgate blob-server`: serve blobs over HTTP until stopped."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockgate.storage_core.cli.http_server import Host, TlsCert, TlsKey, check_tls, exit_on_sigterm, url_of
from lockgate.storage_core.cli.render import print_line
from lockgate.storage_core.errors import LockgateError, MissingPartError

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.server.blob_server import BlobServer

LOG: Final = logging.getLogger("lockgate.blobs")
PORT: Final = 8410


def serve(
    *,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0: any free port.", min=0, max=65_535)] = PORT,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
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
    from lockgate.storage_core.blobs.open_blobs import open_server
    from lockgate.storage_core.settings import load_settings

    try:
        from lockgate.storage_core.blobs.http.access import BearerTokens, allow_all
        from lockgate.storage_core.blobs.http.app import blob_app
        from lockgate.storage_core.http.server import (
            http_server,
            listen,
            raise_file_limit,
            tls_context,
        )
    except ImportError as error:
        raise MissingPartError(
            f"the blob server needs {error.name}: run `pip install 'lockgate[blobs]'`; nothing was started"
        ) from None

    check_tls(tls_cert, tls_key)
    tls = None if tls_cert is None else tls_context(tls_cert, tls_key)
    authorise = allow_all if token_file is None else BearerTokens(token_file)
    settings = load_settings()
    with open_server(settings) as server:
        idle_s = settings.blob_server_idle_s
        app = blob_app(server, authorise, max_bytes=settings.blob_max_bytes, idle_s=idle_s)
        with listen(host, port, allow_remote=token_file is not None, idle_s=idle_s) as bound:
            print_line(url_of(host, bound.getsockname()[1], is_tls=tls is not None))
            sys.stdout.flush()  # the parent process may wait for this line
            if tls is None and token_file is not None:
                LOG.warning(
                    "tokens and blobs are sent unencrypted: use --tls-cert, or a proxy with TLS in front"
                )
            threading.Thread(target=_recover, args=(server,), name="blob-recovery", daemon=True).start()
            raise_file_limit()
            with exit_on_sigterm():
                http_server(app, tls, connections=settings.blob_server_connections).run(sockets=[bound])


def _recover(server: BlobServer) -> None:
    """Stage bytes without a row, which an earlier server left, while requests are served."""
    from lockgate.storage_core.blobs.sweep.orphans import recover

    try:
        recover(server.holdings)
    except LockgateError as error:
        LOG.warning("%s; the next sweep stages bytes without a row instead", error)
