"""Receive a blob into its file, and into the HA store at the same time if its key is known."""

from __future__ import annotations

import msgspec

from lockgate.storage_core.blobs.keys import BlobKey, UploadSetId
from lockgate.storage_core.blobs.registry.upload_sets import PutBlob
from lockgate.storage_core.blobs.storage.ha_upload import HaUpload
from lockgate.storage_core.blobs.storage.incoming_file import IncomingFile
from lockgate.storage_core.journal import Mutation


class ReceivingBlob:
    """A blob being received.

    Args:
        incoming: File of the blob.
        upload_set: Upload set of the put.
        early: Expected key and upload to the HA store; None: the key is known only at the end.
    """

    def __init__(
        self, incoming: IncomingFile, upload_set: UploadSetId, early: tuple[BlobKey, HaUpload] | None = None
    ) -> None:
        self.incoming = incoming
        self.upload_set = upload_set
        self._early = early

    def write(self, data: bytes) -> None:
        """Append bytes; complete parts of them are being sent to the HA store when this returns.

        Raises:
            StoreUnavailableError: The disk is full, or the HA store is unreachable.
        """
        self.incoming.write(data)
        if self._early is not None:
            self._early[1].follow(self.incoming.size_bytes)

    @property
    def early_upload(self) -> tuple[BlobKey, HaUpload] | None:
        """The expected key and the upload, if the number of bytes received is the expected one."""
        if self._early is None or self._early[1].size_bytes != self.incoming.size_bytes:
            return None
        return self._early


class StoredBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob whose bytes are in every store, and that has no row yet."""

    blob: PutBlob
    request_id: str | None

    @property
    def mutation(self) -> Mutation:
        """The mutation that records it."""
        if self.request_id is None:
            return Mutation(op=self.blob)
        return Mutation(op=self.blob, request_id=f"{self.request_id}@{self.blob.job_id}")
