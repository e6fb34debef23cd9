"""A volume server on a real port, in a thread or in a process of its own."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.remote import VOLUME_SERVER, RemoteVolume
from lockgate.storage_core.files.volumes.server.app import volume_app
from lockgate.storage_core.http.connection import Connection
from lockgate.storage_core.http.server import IDLE_S
from lockgate.storage_core.http.tokens import TokenFile
from tests.support.blobs.http_server import PATIENCE_S, serving


@contextmanager
def served_volumes(
    *volumes: LocalVolume,
    tokens: Path | None = None,
    tls: ssl.SSLContext | None = None,
    idle_s: float = IDLE_S,
) -> Iterator[str]:
    """Serve volumes until the block ends; yield the URL."""
    known = (
        None
        if tokens is None
        else TokenFile(tokens, server="volume server", setting="LOCKGATE_VOLUME_TOKEN_FILE")
    )
    with serving(volume_app({one.id: one for one in volumes}, known, idle_s=idle_s), tls=tls) as url:
        yield url


@contextmanager
def remote_volume(
    volume: VolumeId,
    url: str,
    *,
    token_file: Path | None = None,
    ca_file: Path | None = None,
    timeout_s: float = PATIENCE_S,
) -> Iterator[RemoteVolume]:
    """Return a volume at a URL."""
    connection = Connection(
        url,
        peer=VOLUME_SERVER,
        token_file=token_file,
        ca_file=ca_file,
        timeout_s=timeout_s,
        clock=SystemClock(),
    )
    remote = RemoteVolume(volume, connection)
    yield remote
    remote.close()
