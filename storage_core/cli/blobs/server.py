"""`lockgate blob-server`: blobs over HTTP, until stopped."""

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
        str, typer.Option(help="Whose address to listen on; one that others reach asks for tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes one that is free.", min=0, max=65_535)] = PORT,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate in PEM; with it, HTTPS.")
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="Its key in PEM; by default it is in --tls-cert."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Lines `token job-pattern…`; read anew when it changes."
        ),
    ] = None,
) -> None:
    """Serve blobs to clients, caches and operators, until stopped; SIGTERM lets it finish what is under way.

    What it keeps is where LOCKGATE_BLOB_DIR and LOCKGATE_BLOB_STORE_URL say; the journal knows it.
    """
    from lockgate.storage_core.blobs.open_blobs import open_server  # noqa: PLC0415 - slow to import
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415

    try:
        from lockgate.storage_core.blobs.http.server.app import blob_app  # noqa: PLC0415
        from lockgate.storage_core.blobs.http.server.auth.bearer import BearerTokens  # noqa: PLC0415
        from lockgate.storage_core.blobs.http.server.auth.policy import allow_all  # noqa: PLC0415
        from lockgate.storage_core.blobs.http.server.auth.token_file import TokenFile  # noqa: PLC0415
        from lockgate.storage_core.blobs.http.server.listen import (  # noqa: PLC0415
            http_server,
            listen,
            raise_file_limit,
            tls_context,
        )
    except ImportError as error:
        raise MissingPartError(
            f"the blob server needs {error.name}: run `pip install 'lockgate[blobs]'`; nothing was started"
        ) from None

    if tls_key is not None and tls_cert is None:
        raise InvalidInputError(
            "--tls-key without --tls-cert: name the certificate, too; nothing was started"
        )
    tls = None if tls_cert is None else tls_context(tls_cert, tls_key)
    authorise = allow_all if token_file is None else BearerTokens(TokenFile(token_file))
    settings = load_settings()
    with open_server(settings) as server:
        idle_s = settings.blob_server_idle_s
        app = blob_app(server, authorise, max_bytes=settings.blob_max_bytes, idle_s=idle_s)
        with listen(host, port, allow_remote=token_file is not None, idle_s=idle_s) as bound:
            shown = f"[{host}]" if ":" in host else host
            print_line(f"{'http' if tls is None else 'https'}://{shown}:{bound.getsockname()[1]}")
            sys.stdout.flush()  # whoever has started it may wait for this line
            if tls is None and token_file is not None:
                LOG.warning(
                    "tokens and blobs go in clear: name a --tls-cert, or keep a proxy with TLS before it"
                )
            threading.Thread(target=_recover, args=(server,), name="blob-recovery", daemon=True).start()
            with _leaving_by_sigterm():
                raise_file_limit(settings.blob_server_connections)
                http_server(app, tls, connections=settings.blob_server_connections).run(sockets=[bound])


@contextmanager
def _leaving_by_sigterm() -> Iterator[None]:
    """Leave by an exception, so that all is closed: uvicorn sends itself the signal again at its end."""

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _recover(server: BlobServer) -> None:
    """Stage what an earlier server left and no row knows, beside what is served."""
    from lockgate.storage_core.blobs.server.startup import recover  # noqa: PLC0415

    try:
        recover(server.holdings)
    except LockgateError as error:
        LOG.warning("%s; what no row knows is staged by the next sweep instead", error)
