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
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from socket import socket
    from ssl import SSLContext

    from lockgate.storage_core.blobs.server.blob_server import BlobServer

LOG: Final = logging.getLogger("lockgate.server")
BLOB_PORT: Final = 8410

Host = Annotated[str, typer.Option(help="Address to bind; one that is not loopback requires --token-file.")]
Port = Annotated[int, typer.Option(help="Port to bind; 0: any free port.", min=0, max=65_535)]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="PEM certificate; enables HTTPS.")
]
TlsKey = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="PEM key; by default in the file of --tls-cert."),
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Lines `token pattern…` of jobs; read again after a change.",
    ),
]


def serve_blobs(
    *,
    host: Host = "127.0.0.1",
    port: Port = BLOB_PORT,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: Tokens = None,
) -> None:
    """Serve blobs over HTTP until stopped; after SIGTERM running requests are completed.

    Blobs are stored in LOCKGATE_BLOB_DIR and LOCKGATE_BLOB_STORE_URL, their metadata in the journal.
    """
    from lockgate.storage_core.blobs.open_blobs import open_server

    try:
        from lockgate.storage_core.blobs.http.access import BearerTokens, allow_all
        from lockgate.storage_core.blobs.http.app import blob_app
        from lockgate.storage_core.http.server import http_server, listen
    except ImportError as error:
        raise MissingPartError(
            f"the blob server needs {error.name}: run `pip install 'lockgate[blobs]'`; nothing was started"
        ) from None

    tls = _tls(tls_cert, tls_key)
    authorise = allow_all if token_file is None else BearerTokens(token_file)
    settings = load_settings()
    with open_server(settings) as server:
        idle_s = settings.blob_server_idle_s
        app = blob_app(server, authorise, max_bytes=settings.blob_max_bytes, idle_s=idle_s)
        with listen(host, port, allow_remote=token_file is not None, idle_s=idle_s) as bound:
            threading.Thread(target=_recover, args=(server,), name="blob-recovery", daemon=True).start()
            with _serving(_url_of(host, bound, tls), is_exposed=tls is None and token_file is not None):
                http_server(app, tls, connections=settings.blob_server_connections).run(sockets=[bound])


def _tls(tls_cert: Path | None, tls_key: Path | None) -> SSLContext | None:
    from lockgate.storage_core.http.server import tls_context

    if tls_key is not None and tls_cert is None:
        raise InvalidInputError(
            "--tls-key without --tls-cert: name the certificate as well; nothing was started"
        )
    return None if tls_cert is None else tls_context(tls_cert, tls_key)


def _url_of(host: str, bound: socket, tls: SSLContext | None) -> str:
    named = f"[{host}]" if ":" in host else host
    return f"{'http' if tls is None else 'https'}://{named}:{bound.getsockname()[1]}"


@contextmanager
def _serving(url: str, *, is_exposed: bool) -> Iterator[None]:
    """Print the URL; raise `SystemExit` at SIGTERM, which uvicorn raises again, so that all is closed."""
    from lockgate.storage_core.http.server import raise_file_limit

    def exit_(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    print_line(url)
    sys.stdout.flush()  # the parent process may wait for this line
    if is_exposed:
        LOG.warning("tokens and data are sent unencrypted: use --tls-cert, or a proxy with TLS in front")
    raise_file_limit()
    previous = signal.signal(signal.SIGTERM, exit_)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _recover(server: BlobServer) -> None:
    """Stage bytes without a row, which an earlier server left, while requests are served."""
    from lockgate.storage_core.blobs.sweep.orphans import recover

    try:
        recover(server.stores)
    except LockgateError as error:
        LOG.warning("%s; the next sweep stages bytes without a row instead", error)
