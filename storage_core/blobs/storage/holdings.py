"""The stores, the journal and the settings that a blob server and its maintenance work on."""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.listing_marker import LastListing
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.blobs.storage.server_liveness import Liveness
from lockgate.storage_core.journal import Journal


@dataclass(frozen=True)
class Holdings:
    """What a blob server holds.

    Attributes:
        local: Files of this server; no other server uses them.
        ha: Copies that outlive this machine; None: there are none.
        journal: Rows of the blobs, and what keeps them.
        liveness: Which servers use the local store.
        retention_s: An unreferenced blob lives one to two of these.
    """

    local: LocalBlobs
    ha: HaBlobs | None
    journal: Journal
    liveness: Liveness
    retention_s: float

    @property
    def last_listing(self) -> LastListing:
        """When the stores were last listed."""
        return LastListing(self.local.path)
