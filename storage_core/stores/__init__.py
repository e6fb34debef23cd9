"""Where bytes land: one protocol, a local store, an S3 store.

Everything above this package speaks in keys relative to a destination. A store is opened at the
destination, so no key can name anything outside it.
"""

from storage_core.stores.protocol import (
    Capabilities,
    ObjectInfo,
    Part,
    PendingUpload,
    Store,
    UploadInfo,
)
from storage_core.stores.urls import open_store

__all__ = ["Capabilities", "ObjectInfo", "Part", "PendingUpload", "Store", "UploadInfo", "open_store"]
