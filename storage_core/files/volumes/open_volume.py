"""Open a volume by its URL: a directory or a prefix of a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId, is_url
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.os_errors import translated

VOLUME_ID: Final = "volume.id"
"""Name of the file or object with a volume's id."""

_LOCAL: Final = "file://"


def open_volume(url: str, settings: Settings, volume: VolumeId | None = None) -> Volume:
    """Open a volume.

    Args:
        url: `s3://bucket/prefix` or `file:///dir`.
        settings: Uses what begins with `s3_`.
        volume: Its id; None makes a volume if there is none. One that is a URL must exist, with any id.

    Raises:
        InvalidInputError: The URL is of another kind.
        ObjectNotFoundError: There is no volume at a URL that is an id.
        StoreUnavailableError: Another volume is there, or it cannot be reached.
    """
    expected = None if volume is None or is_url(volume) else volume
    if url.startswith(_LOCAL):
        folder = Path(url.removeprefix(_LOCAL))
        with translated("open", url, changes=False):
            exists = (folder / VOLUME_ID).exists()
        if volume == url and not exists:
            raise ObjectNotFoundError(f"{url}: there is no volume; it was deleted with what it belonged to")
        return DirectoryVolume(folder, volume=expected)
    if not url.startswith("s3://"):
        raise InvalidInputError(
            f"volume {url!r}: write file:///directory or s3://bucket/prefix; nothing was changed"
        )
    # The import of boto3 takes a third of a second.
    from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume  # noqa: PLC0415
    from lockgate.storage_core.stores import open_store  # noqa: PLC0415

    store = open_store(url, settings)
    if volume == url:
        store.head(VOLUME_ID)
    return S3Volume(store, volume=expected)
