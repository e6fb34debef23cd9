"""Make a pending upload of an object of the destination, by a link or by the store where that can be."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.errors import AccessDeniedError, NotAppliedError, UnsupportedStoreError
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.settings import MIB
from lockgate.storage_core.stores import PendingUpload, Store
from lockgate.storage_core.stores.file_tree import FileTree

_READ_BYTES: Final = 64 * MIB
_COPIED_BYTES: Final = 1024 * MIB
"""Parts of a copy that a store makes itself; S3 takes up to 5 GiB."""


def copied_upload(store: Store, source: str, size: int, key: str) -> PendingUpload:
    """Return a sealed upload with the bytes of an object, to be completed at another key.

    A file system links the file, or, without hard links, has it read and written; S3 copies it, with its
    content type and metadata.

    Args:
        store: Store of both.
        source: Key of the object.
        size: Its size in bytes.
        key: Key of the upload.

    Raises:
        ObjectNotFoundError: There is no such object.
    """
    is_read = isinstance(store, FileTree)
    if isinstance(store, FileTree):
        with suppress(UnsupportedStoreError, AccessDeniedError):
            local = Path(store.url.removeprefix("file://")) / source
            return store.adopt_file(local, key, new_token())
    step_bytes, token = _READ_BYTES if is_read else _COPIED_BYTES, new_token()
    upload_id = store.begin_upload(key, token, copy_of=source)
    try:
        parts = [
            store.copy_part(
                key,
                upload_id,
                number,
                start,
                source=source,
                start=start,
                length=min(step_bytes, size - start),
            )
            for number, start in enumerate(range(0, size, step_bytes), start=1)
        ]
        # The upload has no checksums; some servers return that of the whole source for each part.
        parts = [msgspec.structs.replace(part, checksum=None) for part in parts]
        parts = parts or [store.put_part(key, upload_id, 1, 0, b"")]
        return store.seal_upload(key, upload_id, token, parts)
    except NotAppliedError:
        with suppress(NotAppliedError):
            store.abort_upload(key, upload_id)
        raise
