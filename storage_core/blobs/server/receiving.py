"""A blob that comes in: into its file, and on into the HA store where its key is known before its bytes."""

from __future__ import annotations

import msgspec

from lockgate.storage_core.blobs.keys import BlobKey, UploadSetId
from lockgate.storage_core.blobs.registry.uploads import PutBlob
from lockgate.storage_core.blobs.storage.ha_upload import HaUpload
from lockgate.storage_core.blobs.storage.incoming_file import IncomingFile
from lockgate.storage_core.journal import Mutation


class ReceivingBlob:
    """Takes a blob's bytes, from the beginning to the end.

    Args:
        incoming: The file.
        upload_set: That it is put under.
        ahead: The key that its bytes are expected to have, and their upload; None: the end tells the key.
    """

    def __init__(
        self, incoming: IncomingFile, upload_set: UploadSetId, ahead: tuple[BlobKey, HaUpload] | None = None
    ) -> None:
        self.incoming = incoming
        self.upload_set = upload_set
        self._ahead = ahead

    def write(self, data: bytes) -> None:
        """Append bytes; whole parts of them are on their way to the HA store when this returns.

        Raises:
            StoreUnavailableError: The disk is full, or the HA store is away.
        """
        self.incoming.write(data)
        if self._ahead is not None:
            self._ahead[1].follow(self.incoming.size_bytes)

    @property
    def ahead(self) -> tuple[BlobKey, HaUpload] | None:
        """The expected key and the upload, if exactly as many bytes came as were expected."""
        if self._ahead is None or self._ahead[1].size_bytes != self.incoming.size_bytes:
            return None
        return self._ahead


class StoredBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob whose bytes stand in every store, and that no row knows yet."""

    blob: PutBlob
    request_id: str | None

    @property
    def mutation(self) -> Mutation:
        """What records it."""
        if self.request_id is None:
            return Mutation(op=self.blob)
        return Mutation(op=self.blob, request_id=f"{self.request_id}@{self.blob.job_id}")
