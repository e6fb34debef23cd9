"""Open a registered volume by its URL."""

from __future__ import annotations

from typing import Protocol

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.settings import Settings


class ReachedVolume(Volume, Protocol):
    """A volume that other machines reach too."""

    def answers(self) -> bool:
        """Return whether it can be reached now."""

    def close(self) -> None:
        """Close its connections."""


def open_volume(volume: VolumeId, url: str, settings: Settings, clock: Clock) -> ReachedVolume:
    """Open the volume that is registered under a URL.

    Args:
        volume: Its id.
        url: `s3://bucket/prefix`, or the URL of a volume server.
        settings: Uses what begins with `s3_` or `volume_`.
        clock: Measures timeouts.

    Raises:
        StoreUnavailableError: Another volume is in the bucket, or the bucket cannot be reached.
    """
    if url.startswith("s3://"):
        # The import of boto3 takes a third of a second.
        from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume  # noqa: PLC0415
        from lockgate.storage_core.stores import open_store  # noqa: PLC0415

        return S3Volume(open_store(url, settings), volume=volume)
    # urllib3, which a process with volumes below its home needs not.
    from lockgate.storage_core.files.volumes.remote import VOLUME_SERVER, RemoteVolume  # noqa: PLC0415
    from lockgate.storage_core.http.connection import Connection  # noqa: PLC0415

    connection = Connection(
        url,
        peer=VOLUME_SERVER,
        token_file=settings.volume_token_file,
        ca_file=settings.volume_ca_file,
        timeout_s=settings.volume_timeout_s,
        clock=clock,
    )
    return RemoteVolume(volume, connection)
