"""Whose blobs lie in a store: what the rows of one journal do not know may be all that another one's know.

A process that was given the wrong journal would take every blob for an orphan. So whoever first lists a store
for orphans writes the identity of its journal there, and nobody with another journal stages anything in it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError
from lockgate.storage_core.stores.os_errors import translated

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.server.server import BlobServer

OWNER: Final = ".journal"
"""Name of the file, and of the object, that names the journal: no job's folder is called so."""


def claim_stores(server: BlobServer, *, dry_run: bool) -> None:
    """Take the stores for the journal of their server, if they are nobody's.

    Args:
        server: Its stores and its journal.
        dry_run: Only look.

    Raises:
        ConflictError: One is another journal's; nothing was changed.
    """
    identity = server.journal.identity
    _refuse_other(_local_owner(server.local), identity, f"{server.local.path}/{OWNER}")
    if server.ha is not None:
        _refuse_other(_ha_owner(server.ha), identity, f"{server.ha.store.url}/{OWNER}")
    if not dry_run:
        _refuse_other(_claimed_local(server.local, identity), identity, f"{server.local.path}/{OWNER}")
        if server.ha is not None:
            _refuse_other(_claimed_ha(server.ha, identity), identity, f"{server.ha.store.url}/{OWNER}")


def _refuse_other(owner: str | None, identity: str, where: str) -> None:
    if owner is not None and owner != identity:
        raise ConflictError(
            f"{where} says that these blobs are of journal {owner}, and this process has journal {identity}: "
            "none was staged; see LOCKGATE_JOURNAL_URL; if that journal is lost for good, delete the file or "
            "object, and what this one does not know goes an interval later"
        )


def _local_owner(local: LocalBlobs) -> str | None:
    path = local.path / OWNER
    with translated("read", str(path), changes=False), suppress(FileNotFoundError):
        return path.read_text(errors="replace")
    return None


def _claimed_local(local: LocalBlobs, identity: str) -> str | None:
    """Write the file if there is none, whole; returns what it says."""
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


def _claimed_ha(ha: HaBlobs, identity: str) -> str | None:
    """Write the object if there is none; returns what it says."""
    owner = _ha_owner(ha)
    if owner is not None:
        return owner
    if ha.store.capabilities.conditional_create:
        with suppress(AlreadyExistsError):
            ha.store.create(OWNER, identity.encode())
    else:
        ha.store.put(OWNER, identity.encode())
    return _ha_owner(ha)
