"""Verify a journal: check its pages, fold its entries again, compare the rows with checkpoints and tables.

Verification begins at the oldest kept entry, not at the newest checkpoint, so that each new checkpoint is
checked against the one before, and pruning can use it. The folded rows are in a temporary database, so that a
journal of any size is verified in little memory. Sums of hashes show whether rows are the same; only if they
are not, the rows are compared one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from sqlalchemy.exc import DBAPIError

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import MalformedJournalError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.checkpoint.replay import batches, load, replay
from lockgate.storage_core.journal.checkpoint.row_sums import RowSums
from lockgate.storage_core.journal.checkpoint.snapshot_file import (
    End,
    SnapshotReader,
    table_rows,
    table_sums,
)
from lockgate.storage_core.journal.checkpoint.temp_database import Difference, TempDatabase, temp_database
from lockgate.storage_core.journal.database.driver_errors import damage_finding, driver_message, is_damage
from lockgate.storage_core.journal.entries.state import Request, Row
from lockgate.storage_core.journal.read.snapshot_read import Reading, read_epochs, survived
from lockgate.storage_core.stamp import Stamp

_NAMED: Final = 20
"""Number of differing rows to name; the rest are counted."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Result of verifying a journal.

    Attributes:
        since: Stamp of the checkpoint before the first folded entry; 0.0 if entries reach back to the
            beginning.
        stamp: Stamp of the newest entry.
        entries: Number of folded entries.
        checkpoints: Verified checkpoints; pruning may delete entries up to the newest of them.
        pages_checked: Whether pages and indexes were checked: those of SQLite are.
        findings: Messages, each about a wrong page, entry, row or checkpoint; empty in a sound journal.
    """

    since: Stamp
    stamp: Stamp
    entries: int
    checkpoints: tuple[Stamp, ...]
    pages_checked: bool
    findings: tuple[str, ...]

    def check(self) -> None:
        """Raise if there are findings.

        Raises:
            MalformedJournalError: The message lists all findings.
        """
        if self.findings:
            raise MalformedJournalError("; ".join(self.findings))


def verify(reading: Reading, checkpoints: Checkpoints, progress: Progress = no_progress) -> Verification:
    """Check the pages, fold the entries again, compare the rows with each checkpoint, then with the tables.

    Checkpoints that equal the journal are marked as verified, unless a page is damaged; nothing else is
    written.

    Raises:
        JournalVersionError: A checkpoint has an entry family that this program does not know, or another
            version of one; the message names the family.
        JournalUnavailableError: There is no room for temporary files.
    """
    with step("verify"), temp_database() as database:
        reading.stay_open()
        verifying = _Verifying(reading, checkpoints, database, progress)
        now_s = reading.now_s()
        verification = verifying.run()
        for stamp, end in verifying.good.items():  # each time, as an earlier record may be of another file
            checkpoints.mark_verified(stamp, end, now_s)
    return verification


class _Verifying:
    """One run over one state, with its findings so far and the last lines of the verified checkpoints."""

    def __init__(
        self, reading: Reading, checkpoints: Checkpoints, database: TempDatabase, progress: Progress
    ) -> None:
        self._reading = reading
        self._checkpoints = checkpoints
        self._progress = progress
        self._status = reading.status()
        self._epochs = read_epochs(reading)
        self._database = database
        self._folded = 0
        self._sums = RowSums()
        self.findings: list[str] = []
        self.good: dict[Stamp, End] = {}

    def run(self) -> Verification:
        found = [checkpoint.stamp for checkpoint in self._checkpoints.all()]
        ahead = sorted(
            (stamp for stamp in found if self._is_followed(stamp)), key=lambda stamp: stamp.sequence
        )
        aside = [stamp for stamp in found if stamp not in ahead]
        since = Stamp()
        is_sqlite = self._reading.database.is_sqlite
        damages = list(self._damaged_pages()) if is_sqlite else []
        self.findings += damages
        try:
            self._check_pruned()
            if self._status.pruned_sequence:
                since = self._begin(ahead)
            while ahead:
                self._fold_up_to(ahead[0].sequence)
                self._compare_checkpoint(ahead.pop(0))
            self._fold_up_to(self._status.stamp.sequence)
            self._check_head()
            if table_sums(self._reading) != self._sums:
                self._report_rows("the tables", table_rows(self._reading))
        except MalformedJournalError as error:
            self.findings.append(str(error))
        except DBAPIError as error:
            if not is_damage(error):
                raise
            self.findings.append(damage_finding(error))
        for stamp in (*aside, *ahead):
            self._check_digest(stamp)
        if damages:
            self.good.clear()  # so that no entry is pruned
        return Verification(
            since=since,
            stamp=self._status.stamp,
            entries=self._folded - since.sequence,
            checkpoints=tuple(sorted(self.good)),
            pages_checked=is_sqlite,
            findings=tuple(self.findings),
        )

    def _damaged_pages(self) -> Iterator[str]:
        """Yield what SQLite finds in pages and indexes, which folding entries may not read."""
        connection = self._reading.connection
        try:
            lines = connection.exec_driver_sql(f"PRAGMA integrity_check({_NAMED})").scalars().all()
        except DBAPIError as error:
            if not is_damage(error):
                raise
            lines = [driver_message(error)]
        for line in lines:
            if line != "ok":
                yield f"the file is damaged: {' '.join(str(line).split())}"

    def _is_followed(self, stamp: Stamp) -> bool:
        """Return whether a checkpoint belongs to this history and no entry after it was pruned."""
        is_here = stamp <= self._status.stamp and survived(self._epochs, stamp)
        return is_here and stamp.sequence >= self._status.pruned_sequence

    def _begin(self, ahead: list[Stamp]) -> Stamp:
        """Load the oldest undamaged checkpoint that entries follow."""
        while ahead:
            stamp = ahead.pop(0)
            self._database.clear()
            self._sums = RowSums()
            try:
                with self._checkpoints.open(stamp, self._status.identity) as snapshot:
                    load(self._database.folded, self._sums.added(_folded_rows(snapshot)))
                    if stamp.sequence == self._status.pruned_sequence:  # otherwise it is unverified
                        self.good[stamp] = snapshot.end
            except MalformedJournalError as error:
                self.findings.append(str(error))
                continue
            except ObjectNotFoundError:  # pruned in the meantime
                continue
            self._folded = stamp.sequence
            return stamp
        raise MalformedJournalError(
            f"entries up to {self._status.pruned_sequence} were pruned, and no checkpoint that can be read "
            "leads on from there: nothing proves the tables; copy the database, then take a checkpoint"
        )

    def _fold_up_to(self, sequence: int) -> None:
        for entries in batches(self._reading, self._folded, sequence):
            self._sums.replace(replay(self._database.folded, entries, self._epochs).replacements)
            self._folded = entries[-1].sequence
            self._progress("fold entries", self._folded, self._status.stamp.sequence)

    def _compare_checkpoint(self, stamp: Stamp) -> None:
        try:
            with self._checkpoints.open(stamp, self._status.identity) as snapshot:
                if self._equals(_folded_rows(snapshot)):
                    self.good[stamp] = snapshot.end
                    return
            with self._checkpoints.open(stamp, self._status.identity) as snapshot:
                self._report_rows(snapshot.name, _folded_rows(snapshot))
        except MalformedJournalError as error:
            self.findings.append(str(error))
        except ObjectNotFoundError:
            return  # pruned meanwhile

    def _check_digest(self, stamp: Stamp) -> None:
        try:
            with self._checkpoints.open(stamp, self._status.identity) as snapshot:
                snapshot.check()
        except MalformedJournalError as error:
            self.findings.append(str(error))
        except ObjectNotFoundError:
            return  # pruned meanwhile

    def _check_head(self) -> None:
        for entry in self._reading.entries(self._folded, 1):
            raise MalformedJournalError(f"entry {entry.stamp}: the journal's head is at {self._status.stamp}")

    def _check_pruned(self) -> None:
        for entry in self._reading.entries(0, 1):
            if entry.sequence <= self._status.pruned_sequence:
                self.findings.append(
                    f"entry {entry.stamp} is there, and by the journal's head entries up to "
                    f"{self._status.pruned_sequence} were pruned"
                )

    def _equals(self, rows: Iterable[Row]) -> bool:
        """Return whether these are the folded rows, read once and not kept."""
        sums = RowSums()
        deque(sums.added(rows), maxlen=0)
        return sums == self._sums

    def _report_rows(self, where: str, rows: Iterable[Row]) -> None:
        """Add the differences from the folded rows to the findings, at least one."""
        if self._report(where, self._database.differences(rows)):
            self.findings.append(f"{where}: a row is there twice")

    def _report(self, where: str, differences: Iterable[Difference]) -> bool:
        """Add differences to the findings; return whether there are none."""
        differing = 0
        for differing, difference in enumerate(differences, start=1):
            if differing <= _NAMED:
                self.findings.append(f"{where}: {difference}")
        if differing > _NAMED:
            self.findings.append(f"{where}: {differing - _NAMED} more rows differ")
        return not differing


def _folded_rows(snapshot: SnapshotReader) -> Iterator[Row]:
    """Yield a checkpoint's rows that entries make."""
    return (row for row in snapshot.rows() if not isinstance(row, Request))
