"""Restoring: the newest checkpoint, and on top of it the entries of a database that survived.

All of it is one transaction, so a restore that dies has done nothing, and is run again. It begins an epoch
whose number it has claimed in the checkpoints' store: no stamp that anybody has seen is issued a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Connection, delete, insert, update

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import (
    ConflictError,
    LockgateError,
    MalformedJournalError,
    ObjectNotFoundError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.checkpoint.replay import batches, load, replay
from lockgate.storage_core.journal.checkpoint.snapshot_file import SnapshotReader
from lockgate.storage_core.journal.database.database import Database, parse_url
from lockgate.storage_core.journal.database.migrate import check_versions
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.database.schema import ENTRY, EPOCH, HEAD
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.maintenance import upkeep
from lockgate.storage_core.journal.read.epochs import Epoch, read_epochs, survived
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.journal.safe_mode import enter_safe_mode
from lockgate.storage_core.journal.write.transaction import Head, begin_epoch
from lockgate.storage_core.stamp import Stamp

EPOCH_STEP: Final = 1000
"""Restores begin epochs that are multiples of this. Failovers count by one, and claim nothing: those that no
checkpoint has seen never have the number of a restore."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore has done.

    Attributes:
        identity: Of the journal.
        checkpoint: From which; None where the entries reach back to the beginning.
        entries: Replayed on top of it.
        stamp: Where the journal stands: in its new epoch, at the newest entry that was restored.
        is_repeat: Whether an earlier run had done it already.
    """

    identity: str
    checkpoint: Stamp | None
    entries: int
    stamp: Stamp
    is_repeat: bool = False


def restore(
    journal: Journal,
    checkpoints: Checkpoints,
    *,
    source: Journal | None = None,
    checkpoint: Stamp | None = None,
    progress: Progress = no_progress,
) -> Restored:
    """Restore a journal into an empty database. It begins a new epoch, in safe mode.

    Args:
        journal: Opened in the empty database, under the name of the one that was lost.
        checkpoints: Of the lost journal.
        source: The old database, where its entries can still be read: they are replayed after the checkpoint.
        checkpoint: Which; by default the newest.
        progress: Hears the entries.

    Raises:
        ObjectNotFoundError: There is no checkpoint, and nothing else to restore from.
        ConflictError: The database is not empty, or the source and the checkpoint went different ways.
        MalformedJournalError: A gap, a wrong digest, another journal's checkpoint; the message names it.
        JournalVersionError: The checkpoint has a family of entries that this program does not know, or a
            newer version of one; the message names the family.
        OutcomeUnknownError: No answer; running it again finds it done, or does it.
    """
    with (
        step("restore"),
        nullcontext() if source is None else source.reading() as reading,
        _base(checkpoints, checkpoint, reading) as base,
    ):
        return _Restoring(journal, checkpoints, base, reading, progress).run()


def restore_in_place(journal: Journal, checkpoints: Checkpoints) -> Stamp:
    """Go on with a database that came back from its own backup; returns where the journal stands.

    Entries after the backup are lost, though holders and readers have seen their stamps. So a new epoch
    begins, in safe mode, as after `restore`. Doing it again begins another one.

    Raises:
        ConflictError: A checkpoint is newer than the backup: restoring that loses less.
        OutcomeUnknownError: No answer; doing it again is harmless.
    """
    with step("restore"):
        with journal.reading() as reading:
            status, epochs = reading.status(), read_epochs(reading)
        checkpoints.claim_folder(status.identity)
        newest = checkpoints.newest()
        if newest is not None and not _is_known(newest.stamp, status.stamp, epochs):
            raise ConflictError(
                f"journal {journal.url} stands at {status.stamp}, a checkpoint at {newest.stamp}; nothing "
                "was changed; restore that into an empty database, which loses less"
            )
        number = _claim(checkpoints, epochs, status.identity)
        with upkeep(journal, "epoch") as (connection, head):
            reason = "the database came back from a backup of its own"
            begin_epoch(
                connection,
                journal.name,
                head.stamp,
                timeline=head.timeline,
                reason=reason,
                now_s=head.now_s,
                epoch=number,
            )
            enter_safe_mode(connection, journal.name, reason, head.now_s)
    return Stamp(number, head.stamp.sequence)


def open_survivor(url: str, name: str) -> Journal:
    """Open a database that survived, to read its entries; nothing is made or migrated there.

    Args:
        url: As `open_journal` takes it.
        name: Of the journal in it.

    Raises:
        InvalidInputError: The URL cannot be.
        ObjectNotFoundError: No such file, or no such journal in it.
        JournalVersionError: It has a family of entries that this program does not know, or a newer version.
        JournalUnavailableError: It cannot be read.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
        raise ObjectNotFoundError(f"{url}: there is no such file to read entries from; nothing was done")
    database = Database(parsed)
    try:
        with database.snapshot() as connection:
            check_versions(connection, database)
            identity = Reading(connection, database, name).status().identity
    except LockgateError:
        database.close()
        raise
    return Journal(database, name, identity)


class _Base(msgspec.Struct, frozen=True):
    """What entries are replayed on: a checkpoint, or nothing."""

    identity: str
    epochs: tuple[Epoch, ...]
    stamp: Stamp
    requests_since_s: float
    snapshot: SnapshotReader | None = None


@contextmanager
def _base(checkpoints: Checkpoints, wanted: Stamp | None, reading: Reading | None) -> Iterator[_Base]:
    if reading is not None:
        reading.stay_open()
    stamp = wanted
    if stamp is None and (newest := checkpoints.newest()) is not None:
        stamp = newest.stamp
    if stamp is not None:
        with checkpoints.open(stamp) as snapshot:
            checkpoints.claim_folder(snapshot.header.identity)
            yield _of_checkpoint(snapshot, reading)
    elif reading is not None:
        status = reading.status()
        yield _Base(status.identity, tuple(read_epochs(reading)), Stamp(), status.requests_since_s)
    else:
        raise ObjectNotFoundError(
            f"{checkpoints.store.url} holds no checkpoint of journal {checkpoints.journal!r}: there is "
            "nothing to restore from; nothing was done; see LOCKGATE_CHECKPOINT_URL, or name the old database"
        )


def _of_checkpoint(snapshot: SnapshotReader, reading: Reading | None) -> _Base:
    """Take a checkpoint as the base, if the surviving entries go on from it."""
    header = snapshot.header
    epochs = list(header.epochs)
    if reading is not None:
        status, epochs = reading.status(), read_epochs(reading)
        if status.identity != header.identity:
            raise MalformedJournalError(
                f"{snapshot.name} is of journal {header.identity}, and {reading.database.name} holds "
                f"{status.identity}; nothing was changed"
            )
        if not (header.stamp <= status.stamp and survived(epochs, header.stamp)):
            raise ConflictError(
                f"{reading.database.name} stands at {status.stamp}, which does not follow {snapshot.name}; "
                "nothing was changed; restore from that alone, or name a checkpoint that it follows"
            )
    return _Base(header.identity, tuple(epochs), header.stamp, header.requests_since_s, snapshot)


class _Restoring:
    """One run."""

    def __init__(
        self,
        journal: Journal,
        checkpoints: Checkpoints,
        base: _Base,
        reading: Reading | None,
        progress: Progress,
    ) -> None:
        self._journal = journal
        self._checkpoints = checkpoints
        self._base = base
        self._reading = reading
        self._progress = progress
        self._last = base.stamp.sequence if reading is None else reading.status().stamp.sequence
        self._entries = self._last - base.stamp.sequence
        self._reason = f"restored from checkpoint {base.stamp} and {self._entries} entries after it"

    def run(self) -> Restored:
        done = self._earlier_run()
        if done is not None:
            return done
        number = _claim(self._checkpoints, self._base.epochs, self._base.identity)
        with upkeep(self._journal, "restore") as (connection, head):
            self._write(connection, head, number)
        self._journal.identity = self._base.identity
        return self._restored(Stamp(number, self._last))

    def _earlier_run(self) -> Restored | None:
        """Tell what an earlier run has done, if the journal stands where that left it."""
        with self._journal.reading() as reading:
            status, epochs = reading.status(), read_epochs(reading)
        newest = epochs[-1]
        if status.stamp.sequence == 0 and newest.epoch < EPOCH_STEP:
            return None
        stands = (status.identity, newest.reason, newest.before, status.stamp.sequence)
        if stands != (self._base.identity, self._reason, self._last, self._last):
            raise self._not_empty(status.identity, status.stamp)
        self._journal.identity = status.identity
        return msgspec.structs.replace(self._restored(status.stamp), is_repeat=True)

    def _write(self, connection: Connection, head: Head, number: int) -> None:
        name = self._journal.name
        if head.stamp.sequence or head.identity != self._journal.identity:
            raise self._not_empty(head.identity, head.stamp)
        rows = SqlRows(connection, name)
        if self._base.snapshot is not None:
            load(rows, self._base.snapshot.rows())
        if self._reading is not None:
            self._replay(rows, self._reading)
        connection.execute(delete(EPOCH).where(EPOCH.c.journal == name))
        epochs = [{"journal": name, **msgspec.structs.asdict(epoch)} for epoch in self._base.epochs]
        connection.execute(insert(EPOCH), epochs)
        connection.execute(
            update(HEAD)
            .where(HEAD.c.journal == name)
            .values(
                identity=self._base.identity,
                sequence=self._last,
                pruned_sequence=self._base.stamp.sequence,
                requests_since_s=self._base.requests_since_s,
            )
        )
        begin_epoch(
            connection,
            name,
            Stamp(self._base.epochs[-1].epoch, self._last),
            timeline=head.timeline,
            reason=self._reason,
            now_s=head.now_s,
            epoch=number,
        )
        enter_safe_mode(connection, name, self._reason, head.now_s)

    def _replay(self, rows: SqlRows, reading: Reading) -> None:
        for entries in batches(reading, self._base.stamp.sequence, self._last):
            replay(rows, entries, self._base.epochs)
            stored = [{"journal": rows.journal, **msgspec.structs.asdict(entry)} for entry in entries]
            rows.connection.execute(insert(ENTRY), stored)
            self._progress("replay entries", entries[-1].sequence, self._last)

    def _restored(self, stamp: Stamp) -> Restored:
        return Restored(
            identity=self._base.identity,
            checkpoint=None if self._base.snapshot is None else self._base.stamp,
            entries=self._entries,
            stamp=stamp,
        )

    def _not_empty(self, identity: str, stamp: Stamp) -> ConflictError:
        whose = "this journal" if identity == self._base.identity else f"another journal ({identity})"
        return ConflictError(
            f"journal {self._journal.url} is not empty: it holds {whose} at stamp {stamp}; nothing was "
            "changed; restore into a new, empty database (LOCKGATE_JOURNAL_URL)"
        )


def _is_known(checkpoint: Stamp, stamp: Stamp, epochs: Sequence[Epoch]) -> bool:
    """Tell whether a database that stands at a stamp holds what a checkpoint does, or has cut it off."""
    return checkpoint <= stamp and checkpoint.epoch in {epoch.epoch for epoch in epochs}


def _claim(checkpoints: Checkpoints, epochs: Sequence[Epoch], identity: str) -> int:
    """Claim the number of an epoch that begins by a restore. A run that dies has used its number up."""
    claim = msgspec.json.encode({"identity": identity, "restore": new_token()})
    number = max(epoch.epoch for epoch in epochs)
    while True:
        number = (number // EPOCH_STEP + 1) * EPOCH_STEP
        if checkpoints.claim_epoch(number, claim):
            return number
