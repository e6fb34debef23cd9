"""Blobs: immutable artefacts of jobs, kept while a reference exists, and deleted in two stages.

The rows and entries of blobs, upload sets and references are in `registry`. Source: Flink BLOB storage.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey, UploadSetId
    from lockgate.storage_core.blobs.protocol import ArtefactFile, Artefacts, BlobInfo, Blobs
    from lockgate.storage_core.blobs.server_or_client import open_blobs
    from lockgate.storage_core.blobs.sources import Source

__all__ = [
    "NO_JOB",
    "ArtefactFile",
    "Artefacts",
    "BlobInfo",
    "BlobKey",
    "Blobs",
    "Source",
    "UploadSetId",
    "open_blobs",
]

_MODULES: Final = {
    "ArtefactFile": "lockgate.storage_core.blobs.protocol",
    "Artefacts": "lockgate.storage_core.blobs.protocol",
    "BlobInfo": "lockgate.storage_core.blobs.protocol",
    "BlobKey": "lockgate.storage_core.blobs.keys",
    "Blobs": "lockgate.storage_core.blobs.protocol",
    "NO_JOB": "lockgate.storage_core.blobs.keys",
    "Source": "lockgate.storage_core.blobs.sources",
    "UploadSetId": "lockgate.storage_core.blobs.keys",
    "open_blobs": "lockgate.storage_core.blobs.server_or_client",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing `registry` stays cheap."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value
