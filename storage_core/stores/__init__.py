"""Where bytes land: one protocol, a local store, an S3 store.

Everything above this package speaks in keys relative to a destination. A store is opened at the
destination, so no key can name anything outside it.
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
