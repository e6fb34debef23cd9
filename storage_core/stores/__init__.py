"""Stores for objects: one protocol, a local store and an S3 store.

A store is opened at a destination. All keys are relative to it and cannot name anything outside it.
"""

from lockgate.storage_core.stores.open_store import open_store
from lockgate.storage_core.stores.protocol import (
    Capabilities,
    ObjectInfo,
    Part,
    PendingUpload,
    Store,
    UploadInfo,
)

__all__ = ["Capabilities", "ObjectInfo", "Part", "PendingUpload", "Store", "UploadInfo", "open_store"]
