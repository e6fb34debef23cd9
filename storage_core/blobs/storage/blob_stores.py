"""The stores of a blob server, each marked with the journal that owns it.

With the wrong journal, a process would take every blob for an orphan, and every blob below an ended job's
id for that job's. So the first put, listing or deletion writes the journal's identity to the store, and a
process with another journal is refused. The claim precedes the bytes: a store that has blobs has an owner.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.listing_time import ListingTime
from lockgate.storage_core.blobs.storage.local import INCOMING, LocalBlobs
from lockgate.storage_core.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.file_locks import lock_exclusive
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.stores.os_errors import translated

OWNER: Final = ".journal"
"""Name of the marker file and object; no job's folder has this name."""


class StoreOwner:
    """The journal that owns the stores of a blob server. Safe to use from several threads."""

    def __init__(self, local: LocalBlobs, ha: HaBlobs | None, journal: Journal) -> None:
        self._local = local
        self._ha = ha
        self._journal = journal
        self._has_local = self._has_ha = False

    def claim_local(self) -> None:
        """Mark the local store unless it is marked; the answer is remembered.

        Raises:
            ConflictError: It belongs to another journal; nothing was changed.
        """
        if not self._has_local:
            self._refuse_other(_claim_local(self._local, self._journal.identity), str(self._local.path))
            self._has_local = True

    def claim_ha(self) -> None:
        """Mark the HA store, if there is one, unless it is marked; the answer is remembered.

        Raises:
            ConflictError: It belongs to another journal; nothing was changed.
            NotAppliedError: Its owner could not be read or written.
            OutcomeUnknownError: The store gave no answer; the mark may be there.
        """
        if self._ha is not None and not self._has_ha:
            with step("blob-claim"):
                self._refuse_other(_claim_ha(self._ha, self._journal.identity), self._ha.store.url)
            self._has_ha = True

    def check(self) -> None:
        """Read the owners of both stores again; change nothing.

        Raises:
            ConflictError: A store belongs to another journal.
        """
        self._has_local = self._has_ha = False
        self._refuse_other(_local_owner(self._local), str(self._local.path))
        if self._ha is not None:
            self._refuse_other(_ha_owner(self._ha), self._ha.store.url)

    def _refuse_other(self, owner: str | None, where: str) -> None:
        if owner is not None and owner != self._journal.identity:
            raise ConflictError(
                f"{where}/{OWNER} says that these blobs belong to journal {owner}, and this process has "
                f"journal {self._journal.identity}: nothing was put, staged or deleted there; name the right "
                "journal (LOCKGATE_JOURNAL_URL), or a store or prefix of this journal's own "
                f"(LOCKGATE_BLOB_STORE_URL, LOCKGATE_BLOB_DIR); if journal {owner} is lost for good, delete "
                "the file or object; blobs that this journal does not know are deleted an interval later"
            )


def _local_owner(local: LocalBlobs) -> str | None:
    path = local.path / OWNER
    with translated("read", str(path), changes=False), suppress(FileNotFoundError):
        return path.read_text(errors="replace")
    return None


def _claim_local(local: LocalBlobs, identity: str) -> str | None:
    """Create the file atomically if there is none; return its owner. Needs no hard links."""
    path = local.path / OWNER
    owner = _local_owner(local)
    if owner is not None:
        return owner
    with translated("write", str(path), changes=True):
        claim = local.path / INCOMING / OWNER
        with lock_exclusive(claim, permissions=0o666) as file:
            owner = _local_owner(local)
            try:
                if owner is None:
                    file.truncate()
                    file.write(identity.encode())
                    os.fsync(file)
                    claim.rename(path)
            finally:
                claim.unlink(missing_ok=True)
    return owner or identity


def _ha_owner(ha: HaBlobs) -> str | None:
    try:
        return ha.store.get(OWNER).decode(errors="replace")
    except ObjectNotFoundError:
        return None


def _claim_ha(ha: HaBlobs, identity: str) -> str | None:
    """Create the object if there is none; return its owner."""
    owner = _ha_owner(ha)
    if owner is not None:
        return owner
    if ha.store.capabilities.conditional_create:
        with suppress(AlreadyExistsError):
            ha.store.create(OWNER, identity.encode())
    else:
        ha.store.put(OWNER, identity.encode())
    return _ha_owner(ha)


@dataclass(frozen=True)
class BlobStores:
    """Stores, journal and settings of a blob server.

    Attributes:
        local: Local store; no other server uses it.
        ha: HA store; None: there is only the local store.
        journal: Journal with the rows of the blobs.
        owner: Claims the stores for the journal.
        retention_s: An unreferenced blob is kept for one to two of these intervals.
    """

    local: LocalBlobs
    ha: HaBlobs | None
    journal: Journal
    owner: StoreOwner
    retention_s: float

    @property
    def listing_time(self) -> ListingTime:
        """The time of the last listing of the stores."""
        return ListingTime(self.local.path)
