"""Restore a journal from its newest checkpoint and the entries of a database that survived.

A restore is one transaction, so an interrupted one has no effect and can be repeated. It begins an epoch
whose number it has reserved in the checkpoints' store, so that no stamp is issued twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
from sqlalchemy import Connection, delete, insert, update

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import (
    ConflictError,
    LockgateError,
    MalformedJournalError,
    ObjectNotFoundError,
    StateLostError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.checkpoint.replay import batches, load, replay
from lockgate.storage_core.journal.checkpoint.snapshot_file import SnapshotReader
from lockgate.storage_core.journal.database.create_tables import check_versions
from lockgate.storage_core.journal.database.database import Database, parse_url
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.database.schema import ENTRY, EPOCH, HEAD
from lockgate.storage_core.journal.journal import Journal, maintenance
from lockgate.storage_core.journal.read.snapshot_read import Epoch, Reading, epoch_of, read_epochs, survived
from lockgate.storage_core.journal.write.head import (
    EPOCH_STEP,
    Head,
    SafeReason,
    begin_epoch,
    enter_safe_mode,
)
from lockgate.storage_core.stamp import Stamp


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a restore.

    Attributes:
        identity: Identity of the journal.
        checkpoint: Stamp of the checkpoint, None if the entries reach back to the beginning.
        entries: Number of entries replayed after it.
        stamp: The new epoch, and the sequence of the newest restored entry.
        is_repeat: Whether an earlier run had already restored it.
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
        journal: Journal in the empty database, with the name of the lost one.
        checkpoints: Checkpoints of the lost journal.
        source: The old database, if its entries can be read: they are replayed after the checkpoint.
        checkpoint: Stamp of the checkpoint; by default the newest.
        progress: Called with the number of entries.

    Raises:
        ObjectNotFoundError: There is neither a checkpoint nor a source.
        ConflictError: The database is not empty, or the source's history does not contain the checkpoint.
        MalformedJournalError: A gap, a wrong digest, another journal's checkpoint; the message names it.
        JournalVersionError: The checkpoint has an entry family that this program does not know, or another
            version of one; the message names the family.
        OutcomeUnknownError: No answer; run it again.
    """
    with (
        step("restore"),
        nullcontext() if source is None else source.reading() as reading,
        _base(checkpoints, checkpoint, reading) as base,
    ):
        try:
            return _Restoring(journal, checkpoints, base, reading, progress).run()
        except StateLostError as error:  # the restored journal has another identity
            raise ConflictError(
                f"journal {journal.url}: another process has restored or replaced it meanwhile; nothing was "
                "changed; see `lockgate journal status`"
            ) from error


def restore_in_place(journal: Journal, checkpoints: Checkpoints) -> Stamp:
    """Continue with a database that was restored from its own backup; return the journal's new stamp.

    Entries after the backup are lost, although holders and readers have seen their stamps. So a new epoch
    begins, in safe mode, as after `restore`. Another call begins another epoch.

    Raises:
        ConflictError: A checkpoint is newer than the backup: restoring it loses less.
        OutcomeUnknownError: No answer; a second call is harmless.
    """
    with step("restore"):
        with journal.reading() as reading:
            status, epochs = reading.status(), read_epochs(reading)
        checkpoints.reserve_folder(status.identity)
        newest = checkpoints.newest()
        if newest is not None and not _is_known(newest.stamp, status.stamp, epochs):
            raise ConflictError(
                f"journal {journal.url} stands at {status.stamp}, a checkpoint at {newest.stamp}; nothing "
                "was changed; restore that into an empty database, which loses less"
            )
        number = _reserve_epoch(checkpoints, epochs, status.identity)
        with maintenance(journal, "epoch") as (connection, head):
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
            enter_safe_mode(connection, journal.name, SafeReason.RESTORED, reason, head.now_s)
        stamp = Stamp(number, head.stamp.sequence)
        journal.acknowledge(stamp)
    return stamp


def open_survivor(url: str, name: str) -> Journal:
    """Open a database that survived, to read its entries, without creating anything.

    Raises:
        InvalidInputError: The URL is invalid.
        ObjectNotFoundError: The file or the journal does not exist.
        JournalVersionError: It has an entry family that this program does not know, or another version.
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
    """The basis of a replay: a checkpoint, or nothing."""

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
            checkpoints.reserve_folder(snapshot.header.identity)
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
    """Return a checkpoint as the basis; raise if the surviving entries do not follow it."""
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
    """One run of `restore`."""

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
        number = _reserve_epoch(self._checkpoints, self._base.epochs, self._base.identity)
        with maintenance(self._journal, "restore") as (connection, head):
            self._write(connection, head, number)
        self._journal.identity = self._base.identity
        self._journal.acknowledge(Stamp(number, self._last))
        return self._restored(Stamp(number, self._last))

    def _earlier_run(self) -> Restored | None:
        """Return the result of an earlier run if the journal is unchanged since."""
        with self._journal.reading() as reading:
            status, epochs = reading.status(), read_epochs(reading)
        newest = epochs[-1]
        if status.stamp.sequence == 0 and newest.epoch % EPOCH_STEP:
            return None
        found = (status.identity, newest.reason, newest.before, status.stamp.sequence)
        if found != (self._base.identity, self._reason, self._last, self._last):
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
        enter_safe_mode(connection, name, SafeReason.RESTORED, self._reason, head.now_s)

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
    """Return whether a database at a stamp contains a checkpoint's entries, or has cut them off."""
    # An epoch that has begun by itself, because a file was put back, and has no entries cuts nothing off.
    cuts = [epoch.epoch for epoch in epochs if epoch.before < checkpoint.sequence]
    is_chosen = any(epoch > checkpoint.epoch and epoch % EPOCH_STEP == 0 for epoch in cuts)
    has_entries = epoch_of(epochs, stamp.sequence) > checkpoint.epoch
    if stamp.sequence < checkpoint.sequence and not is_chosen and not has_entries:
        return False
    return checkpoint <= stamp and checkpoint.epoch in {epoch.epoch for epoch in epochs}


def _reserve_epoch(checkpoints: Checkpoints, epochs: Sequence[Epoch], identity: str) -> int:
    """Reserve the number of a restore's epoch; an interrupted run has used up its number."""
    owner = msgspec.json.encode({"identity": identity, "restore": new_token()})
    number = max(epoch.epoch for epoch in epochs)
    while True:
        number = (number // EPOCH_STEP + 1) * EPOCH_STEP
        if checkpoints.reserve_epoch(number, owner):
            return number
