"""`lockgate blob-server` and `lockgate volume-server`: serve over HTTP until stopped."""

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
    from lockgate.storage_core.blobs.server.blob_server import BlobServer

BLOB_LOG: Final = logging.getLogger("lockgate.blobs")
BLOB_PORT: Final = 8410
VOLUME_LOG: Final = logging.getLogger("lockgate.volumes")
VOLUME_PORT: Final = 8420
_ANY: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound

Host = Annotated[str, typer.Option(help="Address to bind; one that is not loopback requires --token-file.")]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="PEM certificate; enables HTTPS.")
]
TlsKey = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="PEM key; by default in the file of --tls-cert."),
]


def serve_blobs(
    *,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0: any free port.", min=0, max=65_535)] = BLOB_PORT,
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

    _check_tls(tls_cert, tls_key)
    tls = None if tls_cert is None else tls_context(tls_cert, tls_key)
    authorise = allow_all if token_file is None else BearerTokens(token_file)
    settings = load_settings()
    with open_server(settings) as server:
        idle_s = settings.blob_server_idle_s
        app = blob_app(server, authorise, max_bytes=settings.blob_max_bytes, idle_s=idle_s)
        with listen(host, port, allow_remote=token_file is not None, idle_s=idle_s) as bound:
            print_line(_url_of(host, bound.getsockname()[1], is_tls=tls is not None))
            sys.stdout.flush()  # the parent process may wait for this line
            if tls is None and token_file is not None:
                BLOB_LOG.warning(
                    "tokens and blobs are sent unencrypted: use --tls-cert, or a proxy with TLS in front"
                )
            threading.Thread(target=_recover, args=(server,), name="blob-recovery", daemon=True).start()
            raise_file_limit()
            with _exit_on_sigterm():
                http_server(app, tls, connections=settings.blob_server_connections).run(sockets=[bound])


def serve_volumes(
    *,
    volume: Annotated[
        list[str],
        typer.Option("--volume", metavar="DIR", help="Directory of a volume; made if missing."),
    ],
    host: Host = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to bind; 0: any free port.", min=0, max=65_535)
    ] = VOLUME_PORT,
    url: Annotated[
        str, typer.Option(metavar="URL", help="Where others reach it; by default from --host and --port.")
    ] = "",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Lines `token volume-pattern…`; read again after a change."
        ),
    ] = None,
) -> None:
    """Serve volumes of appendable files over HTTP until stopped; at SIGTERM it completes running requests.

    The process owns the directories, and registers its URL in the journal of LOCKGATE_JOURNAL_URL.
    """
    from lockgate.storage_core.files.namespace.volume_urls import register_urls
    from lockgate.storage_core.files.volumes.remote import VOLUME_SERVER
    from lockgate.storage_core.http.connection import check_url
    from lockgate.storage_core.journal.process_journal import configured_journal

    try:
        from lockgate.storage_core.files.volumes.server.app import volume_app
        from lockgate.storage_core.files.volumes.server.owned import owned_volumes
        from lockgate.storage_core.http.server import (
            http_server,
            listen,
            raise_file_limit,
            tls_context,
        )
        from lockgate.storage_core.http.tokens import TokenFile
    except ImportError as error:
        raise MissingPartError(
            f"the volume server needs {error.name}: run `pip install 'lockgate[blobs]'`; nothing was started"
        ) from None

    if not all(volume):
        raise InvalidInputError(
            "--volume '': it names no directory; nothing was started; is a variable of the shell empty?"
        )
    _check_tls(tls_cert, tls_key)
    if host in _ANY and not url:
        raise InvalidInputError(
            f"--host {host}: other processes cannot reach this address; nothing was started; add --url, "
            "such as https://volumes.example.com:8420"
        )
    if url:
        check_url(url, VOLUME_SERVER)
    tls = None if tls_cert is None else tls_context(tls_cert, tls_key)
    tokens = (
        None
        if token_file is None
        else TokenFile(token_file, server="volume server", setting="LOCKGATE_VOLUME_TOKEN_FILE")
    )
    journal = configured_journal(load_settings(), None)
    if journal is None:
        raise InvalidInputError(
            "appendable files are kept in a journal; nothing was started; set LOCKGATE_JOURNAL_URL to one"
        )
    with (
        listen(host, port, allow_remote=token_file is not None) as bound,
        owned_volumes([Path(folder) for folder in volume], journal.identity) as owned,
    ):
        reached = url.rstrip("/") or _url_of(host, bound.getsockname()[1], is_tls=tls is not None)
        register_urls(journal, dict.fromkeys(owned, reached))
        print_line(reached)
        sys.stdout.flush()  # the parent process may wait for this line
        if tls is None and token_file is not None:
            VOLUME_LOG.warning(
                "tokens and bytes are sent unencrypted: use --tls-cert, or a proxy with TLS in front"
            )
        with _exit_on_sigterm():
            raise_file_limit()
            http_server(volume_app(owned, tokens), tls).run(sockets=[bound])


def _check_tls(tls_cert: Path | None, tls_key: Path | None) -> None:
    """Refuse a key without a certificate."""
    if tls_key is not None and tls_cert is None:
        raise InvalidInputError(
            "--tls-key without --tls-cert: name the certificate as well; nothing was started"
        )


def _url_of(host: str, port: int, *, is_tls: bool) -> str:
    """Return the URL of a server."""
    named = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{named}:{port}"


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
    from lockgate.storage_core.blobs.sweep.orphans import recover

    try:
        recover(server.stores)
    except LockgateError as error:
        BLOB_LOG.warning("%s; the next sweep stages bytes without a row instead", error)
