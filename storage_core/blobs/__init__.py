"""Immutable artefacts of jobs, kept while a reference exists, and deleted in two stages.

The journal holds the rows of blobs, upload sets and references. Source: Flink BLOB storage.
"""

from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey, UploadSetId
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.blobs.protocol import ArtefactFile, Artefacts, BlobInfo, Blobs
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
