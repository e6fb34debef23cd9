"""Blobs: immutable artefacts of jobs, kept while something refers to them, and swept in two stages.

    keys         what a key says
    local, ha    where the bytes are
    protocol     what can be asked of a blob server
    server       takes blobs in and hands them out
    opening      the server or the client that the settings name

Source: Flink BLOB storage. The rows are the journal's: see `journal.ops.uploads`, `.references`, `.removals`.
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
