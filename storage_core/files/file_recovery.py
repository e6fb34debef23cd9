"""Recovery of files whose writers ended without closing them: sealed, closed, at one length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec

from lockgate.storage_core.errors import (
    FencedError,
    LeaseHeldError,
    LockgateError,
    NotAppliedError,
    OutcomeUnknownError,
)
from lockgate.storage_core.failpoints import around
from lockgate.storage_core.files.blocks import BlockRecord, Opened, naming
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks
from lockgate.storage_core.files.reseal import reseal
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.ids import FILE_RESOURCES, file_resource, inode_of
from lockgate.storage_core.journal import Journal, Leases, LeaseView
from lockgate.storage_core.journal.leases.lease import overdue_leases
from lockgate.storage_core.journal.leases.renewer import Renewer
from lockgate.storage_core.stamp import Stamp


class RecoveredFile(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one file's recovery.

    Attributes:
        path: Its path when it was opened.
        length_bytes: Its length; None if it was not recovered.
        why_not: Why it was not; empty if it was.
    """

    path: str
    length_bytes: int | None = None
    why_not: str = ""


@dataclass
class FileRecovery:
    """Recovers files whose leases have lapsed; each is renewed while its file is recovered."""

    journal: Journal
    volumes: Mapping[VolumeId, Volume]
    renewer: Renewer
    soft_s: float
    hard_s: float

    def __post_init__(self) -> None:
        self._leases = Leases(self.journal)

    def recover(self, inode: int, *, accept_loss: bool = False) -> int | None:
        """Recover a file whose writer has ended, and close it.

        A lease that is overdue by the wall clock is waited for, as in `recover_lapsed`.

        Args:
            accept_loss: Close the file with the longest intact bytes, if no volume that answers has all that
                were flushed.

        Returns:
            The length in bytes, None if the file needs no recovery.

        Raises:
            LeaseHeldError: Its lease has not lapsed: the writer may live.
            StoreUnavailableError: No member that answered has all bytes; a later call begins again.
            MalformedRecordError: All members answered, and none has all bytes.
            FencedError: Another recovery or writer has taken it over.
        """
        view = self._leases.look(file_resource(inode))
        if view is not None and view.is_overdue and view.lapses_in_s:
            self.journal.clock.sleep(view.lapses_in_s)
            view = self._leases.look(file_resource(inode))
        return None if view is None else self._recover(inode, view, accept_loss=accept_loss)

    def recover_lapsed(
        self, *, note: Callable[[RecoveredFile], None] = lambda _: None
    ) -> list[RecoveredFile]:
        """Recover all files whose leases have lapsed; one that fails does not stop the others.

        By the wall clock a lease is only overdue. It is waited for until this process has seen it unrenewed
        for its limit.
        """
        views, done = self._overdue(), []
        if wait_s := max((view.lapses_in_s for view in views), default=0.0):
            self.journal.clock.sleep(wait_s)
            views = self._overdue()
        for view in views:
            if view.lapses_in_s:
                continue
            inode, path = inode_of(view.lease.resource), view.lease.detail
            try:
                found = RecoveredFile(path=path, length_bytes=self._recover(inode, view))
            except LockgateError as error:
                found = RecoveredFile(path=path, why_not=str(error))
            note(found)
            done.append(found)
        return done

    def lapsed(self) -> list[str]:
        """Return the paths of the files whose leases are overdue, as when they were opened."""
        return [view.lease.detail for view in self._overdue()]

    def _overdue(self) -> list[LeaseView]:
        with self.journal.reading() as reading:
            now_s = reading.now_s()
            overdue = overdue_leases(reading, now_s, self.hard_s)
            leases = [one for one in overdue if one.resource.startswith(FILE_RESOURCES)]
        return [self._leases.watch(one, now_s) for one in leases]

    def _recover(self, inode: int, view: LeaseView, *, accept_loss: bool = False) -> int:
        if view.lapses_in_s:
            raise LeaseHeldError(
                f"{view.lease.detail}: its writer may live: its lease is {view.state} and lapses in "
                f"{view.lapses_in_s:.0f} s; nothing was changed; wait, or end the writer"
            )
        began_s = self.journal.clock.monotonic_s()
        stamp = self._leases.take(
            view.lease.resource,
            self.renewer.holder,
            purpose="recover",
            soft_s=self.soft_s,
            hard_s=self.hard_s,
            detail=view.lease.detail,
            seen=view.lease,
        )
        self.renewer.keep(view.lease.resource, stamp, since_s=began_s)
        blocks = JournalBlocks(self.journal, Opened(inode, stamp))
        with closing(view.lease.detail, blocks, self.renewer, self._leases):
            records = settle(blocks, self.volumes, accept_loss=accept_loss)
            around("recover.close", blocks.close)
        return sum(record.length_bytes for record in records)


@contextmanager
def closing(path: str, blocks: JournalBlocks, renewer: Renewer, leases: Leases) -> Iterator[None]:
    """Renew the lease of a file while it is changed and closed; after an error it is given back at once."""
    try:
        with naming(path):
            yield
    except (NotAppliedError, OutcomeUnknownError):
        give_back(leases, blocks.resource, blocks.lease)  # a volume that returns need not be waited for
        raise
    finally:
        renewer.drop(blocks.resource, blocks.lease)


def give_back(leases: Leases, resource: str, stamp: Stamp) -> None:
    """Let the next call or a recovery take a file at once, if the journal answers."""
    with suppress(NotAppliedError, OutcomeUnknownError, FencedError):  # it lapses, or is another's
        leases.free(resource, stamp)


def settle(
    blocks: JournalBlocks, volumes: Mapping[VolumeId, Volume], *, accept_loss: bool = False
) -> list[BlockRecord]:
    """Seal the last block of a file, if it is being written or a reseal of it is not committed; see `reseal`.

    Returns all blocks.
    """
    records = list(blocks.records())
    if records and not records[-1].is_settled:
        records[-1] = reseal(
            blocks, volumes, records[-1].block, ends=ReplicaState.SEALED, accept_loss=accept_loss
        )
    return records
