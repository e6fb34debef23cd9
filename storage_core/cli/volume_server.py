"""`lockgate volume-server`: serve volumes of appendable files over HTTP until stopped."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from lockgate.storage_core.cli.http_server import Host, TlsCert, TlsKey, check_tls, exit_on_sigterm, url_of
from lockgate.storage_core.cli.render import print_line
from lockgate.storage_core.errors import InvalidInputError, MissingPartError

LOG: Final = logging.getLogger("lockgate.volumes")
PORT: Final = 8420
_ANY: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound


def serve(
    *,
    volume: Annotated[
        list[str],
        typer.Option("--volume", metavar="DIR", help="Directory of a volume; made if missing."),
    ],
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0: any free port.", min=0, max=65_535)] = PORT,
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
    from lockgate.storage_core.settings import load_settings

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
    check_tls(tls_cert, tls_key)
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
        reached = url.rstrip("/") or url_of(host, bound.getsockname()[1], is_tls=tls is not None)
        register_urls(journal, dict.fromkeys(owned, reached))
        print_line(reached)
        sys.stdout.flush()  # the parent process may wait for this line
        if tls is None and token_file is not None:
            LOG.warning("tokens and bytes are sent unencrypted: use --tls-cert, or a proxy with TLS in front")
        with exit_on_sigterm():
            raise_file_limit()
            http_server(volume_app(owned, tokens), tls).run(sockets=[bound])
