"""The stores, the journal and the settings that a blob server and its maintenance work on."""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.listing_time import ListingTime
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.blobs.storage.server_liveness import Liveness
from lockgate.storage_core.blobs.storage.store_owner import StoreOwner
from lockgate.storage_core.journal import Journal


@dataclass(frozen=True)
class Holdings:
    """Stores, journal and settings of a blob server.

    Attributes:
        local: Local store; no other server uses it.
        ha: HA store; None: there is only the local store.
        journal: Journal with the rows of the blobs.
        liveness: Which servers use the local store.
        owner: Claims the stores for the journal.
        retention_s: An unreferenced blob is kept for one to two of these intervals.
    """

    local: LocalBlobs
    ha: HaBlobs | None
    journal: Journal
    liveness: Liveness
    owner: StoreOwner
    retention_s: float

    @property
    def listing_time(self) -> ListingTime:
        """The time of the last listing of the stores."""
        return ListingTime(self.local.path)
