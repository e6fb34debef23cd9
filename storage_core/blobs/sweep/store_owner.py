"""Mark each blob store with the journal that owns it.

With the wrong journal, a process would take every blob for an orphan. So the first listing for orphans writes
the journal's identity to each store, and a process with another journal stages nothing there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.holdings import Holdings
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError
from lockgate.storage_core.stores.os_errors import translated

OWNER: Final = ".journal"
"""Name of the marker file and object; no job's folder has this name."""


def claim_stores(holdings: Holdings, *, dry_run: bool) -> None:
    """Mark unowned stores with the journal's identity; a dry run only checks them.

    Raises:
        ConflictError: A store belongs to another journal; nothing was changed.
    """
    identity, local, ha = holdings.journal.identity, holdings.local, holdings.ha
    _refuse_other(_local_owner(local), identity, f"{local.path}/{OWNER}")
    if ha is not None:
        _refuse_other(_ha_owner(ha), identity, f"{ha.store.url}/{OWNER}")
    if dry_run:
        return
    _refuse_other(_claim_local(local, identity), identity, f"{local.path}/{OWNER}")
    if ha is not None:
        _refuse_other(_claim_ha(ha, identity), identity, f"{ha.store.url}/{OWNER}")


def _refuse_other(owner: str | None, identity: str, where: str) -> None:
    if owner is not None and owner != identity:
        raise ConflictError(
            f"{where} says that these blobs belong to journal {owner}, and this process has journal "
            f"{identity}: none was staged; see LOCKGATE_JOURNAL_URL; if that journal is lost for good, "
            "delete the file or object; blobs that this journal does not know are deleted an interval later"
        )


def _local_owner(local: LocalBlobs) -> str | None:
    path = local.path / OWNER
    with translated("read", str(path), changes=False), suppress(FileNotFoundError):
        return path.read_text(errors="replace")
    return None


def _claim_local(local: LocalBlobs, identity: str) -> str | None:
    """Create the file atomically if there is none; return its owner."""
    path = local.path / OWNER
    if not path.exists():
        with local.incoming() as incoming:
            incoming.write(identity.encode())
            incoming.sync()
            with translated("write", str(path), changes=True), suppress(FileExistsError):
                os.link(incoming.path, path)
    return _local_owner(local)


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
