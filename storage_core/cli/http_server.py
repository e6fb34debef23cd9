"""Options and ends of the commands that serve HTTP."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from lockgate.storage_core.errors import InvalidInputError

Host = Annotated[str, typer.Option(help="Address to bind; one that is not loopback requires --token-file.")]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="PEM certificate; enables HTTPS.")
]
TlsKey = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="PEM key; by default in the file of --tls-cert."),
]


def check_tls(tls_cert: Path | None, tls_key: Path | None) -> None:
    """Refuse a key without a certificate.

    Raises:
        InvalidInputError: There is a key only.
    """
    if tls_key is not None and tls_cert is None:
        raise InvalidInputError(
            "--tls-key without --tls-cert: name the certificate as well; nothing was started"
        )


def url_of(host: str, port: int, *, is_tls: bool) -> str:
    """Return the URL of a server."""
    named = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{named}:{port}"


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Raise `SystemExit` at SIGTERM, so that all is closed: uvicorn re-raises the signal at its end."""

    def exit_(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    previous = signal.signal(signal.SIGTERM, exit_)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
