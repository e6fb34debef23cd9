"""Notice a SQLite file that was put back from a copy while no process had it open.

It continues in a new epoch, so that no stamp is issued twice, and in safe mode, because it has forgotten
entries that were acknowledged.
"""

from __future__ import annotations

import logging
from typing import Final

from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.read.same_journal import Known
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.journal.write.acknowledged_head import AcknowledgedHead
from lockgate.storage_core.journal.write.head import (
    Head,
    SafeReason,
    begin_epoch,
    enter_safe_mode,
    epoch_after,
    lock_head,
)
from lockgate.storage_core.stamp import Stamp

LOG: Final = logging.getLogger("lockgate.journal")


def notice_put_back(database: Database, known: Known, acknowledged: AcknowledgedHead) -> None:
    """Begin a new epoch, in safe mode, if the database is older than its newest acknowledged stamp.

    Of several processes that open it at once, one does so.

    Raises:
        JournalUnavailableError: The database is older, and cannot be written.
    """
    newest = acknowledged.newest(known.identity)  # before the head, which other processes may move meanwhile
    with database.snapshot() as connection:
        stamp = Reading(connection, database, known.journal).status().stamp
    if newest is not None and stamp < newest:
        stamp = _begin_epoch(database, known, acknowledged)
    if stamp != newest:
        acknowledged.record(known.identity, stamp)


def _begin_epoch(database: Database, known: Known, acknowledged: AcknowledgedHead) -> Stamp:
    """Begin the epoch unless another process has, and return the journal's stamp."""
    point = f"{current_step()}.journal-put-back"
    FAILPOINTS.hit(f"{point}.before")
    with database.write() as connection:
        head = lock_head(connection, database, known)
        newest = acknowledged.newest(known.identity)
        if newest is None or head.stamp >= newest:
            return head.stamp
        reason = f"the file was put back from a copy: it was at {head.stamp}, and {newest} was acknowledged"
        number = begin_epoch(
            connection,
            known.journal,
            head.stamp,
            timeline=head.timeline,
            reason=reason,
            now_s=head.now_s,
            epoch=epoch_after(max(head.stamp.epoch, newest.epoch)),
        )
        enter_safe_mode(connection, known.journal, SafeReason.PUT_BACK, reason, head.now_s)
    FAILPOINTS.hit(f"{point}.after")
    LOG.warning(
        "journal %s: %s; %s epoch %d has begun, in safe mode, so no stamp is issued twice and nothing is "
        "deleted; see `lockgate journal status`: if a checkpoint is newer, restore it into an empty "
        "database; otherwise check the journal, then run `lockgate journal leave-safe-mode`",
        database.name,
        reason,
        _lost(head, newest),
        number,
    )
    return Stamp(number, head.stamp.sequence)


def _lost(head: Head, newest: Stamp) -> str:
    count = newest.sequence - head.stamp.sequence
    return f"{count} entries are lost;" if count > 0 else ""
