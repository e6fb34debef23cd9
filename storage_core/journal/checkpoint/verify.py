"""Verify a journal: fold its entries again, and compare the rows with the checkpoints and the tables.

Verification begins at the oldest kept entry, not at the newest checkpoint, so that each new checkpoint is
checked against the one before, and pruning can use it. The folded rows are in a temporary database, so that a
journal of any size is verified in little memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import MalformedJournalError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.checkpoint.replay import batches, load, replay
from lockgate.storage_core.journal.checkpoint.snapshot_file import End, table_rows
from lockgate.storage_core.journal.checkpoint.temp_database import TempDatabase, temp_database
from lockgate.storage_core.journal.entries.rows import Request, Row
from lockgate.storage_core.journal.read.epochs import read_epochs, survived
from lockgate.storage_core.journal.read.snapshot_read import Reading
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
        findings: Messages, each about a wrong entry, row or checkpoint; empty in a sound journal.
    """

    since: Stamp
    stamp: Stamp
    entries: int
    checkpoints: tuple[Stamp, ...]
    findings: tuple[str, ...]

    def check(self) -> None:
        """Raise if there are findings.

        Raises:
            MalformedJournalError: The message lists all findings.
        """
        if self.findings:
            raise MalformedJournalError("; ".join(self.findings))


def verify(reading: Reading, checkpoints: Checkpoints, progress: Progress = no_progress) -> Verification:
    """Fold the entries again; compare the rows with each checkpoint on the way, then with the tables.

    Checkpoints with the same rows are marked as verified. Nothing else is written.

    Args:
        reading: State of the journal, on the primary or on an observer.
        checkpoints: Checkpoints of this journal.
        progress: Called with the number of entries.

    Raises:
        JournalVersionError: A checkpoint has a family of entries that this program does not know, or a newer
            version of one; the message names the family.
        JournalUnavailableError: There is no room for temporary files.
    """
    with step("verify"), temp_database() as database:
        reading.stay_open()
        verifying = _Verifying(reading, checkpoints, database, progress)
        verification = verifying.run()
        for stamp, end in verifying.good.items():  # each time, as an earlier record may be of another file
            checkpoints.mark_verified(stamp, end, reading.now_s())
    return verification


class _Verifying:
    """One run over one state.

    Attributes:
        findings: Findings so far.
        good: The last lines of the verified checkpoints.
    """

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
        self.findings: list[str] = []
        self.good: dict[Stamp, End] = {}

    def run(self) -> Verification:
        found = [checkpoint.stamp for checkpoint in self._checkpoints.all()]
        ahead = sorted(
            (stamp for stamp in found if self._is_followed(stamp)), key=lambda stamp: stamp.sequence
        )
        aside = [stamp for stamp in found if stamp not in ahead]
        since = Stamp()
        try:
            if self._status.pruned_sequence:
                since = self._begin(ahead)
            while ahead:
                self._fold_up_to(ahead[0].sequence)
                self._compare_checkpoint(ahead.pop(0))
            self._fold_up_to(self._status.stamp.sequence)
            self._check_head()
            self._compare("the tables", table_rows(self._reading))
        except MalformedJournalError as error:
            self.findings.append(str(error))
        for stamp in (*aside, *ahead):
            self._check_digest(stamp)
        return Verification(
            since=since,
            stamp=self._status.stamp,
            entries=self._folded - since.sequence,
            checkpoints=tuple(sorted(self.good)),
            findings=tuple(self.findings),
        )

    def _is_followed(self, stamp: Stamp) -> bool:
        """Return whether a checkpoint belongs to this history and no entry after it was pruned."""
        is_here = stamp <= self._status.stamp and survived(self._epochs, stamp)
        return is_here and stamp.sequence >= self._status.pruned_sequence

    def _begin(self, ahead: list[Stamp]) -> Stamp:
        """Load the oldest undamaged checkpoint that entries follow."""
        while ahead:
            stamp = ahead.pop(0)
            self._database.clear()
            try:
                with self._checkpoints.open(stamp, self._status.identity) as snapshot:
                    load(
                        self._database.folded,
                        (row for row in snapshot.rows() if not isinstance(row, Request)),
                    )
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
            replay(self._database.folded, entries, self._epochs)
            self._folded = entries[-1].sequence
            self._progress("fold entries", self._folded, self._status.stamp.sequence)

    def _compare_checkpoint(self, stamp: Stamp) -> None:
        try:
            with self._checkpoints.open(stamp, self._status.identity) as snapshot:
                rows = (row for row in snapshot.rows() if not isinstance(row, Request))
                if self._compare(snapshot.name, rows):
                    self.good[stamp] = snapshot.end
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

    def _compare(self, where: str, rows: Iterable[Row]) -> bool:
        """Compare rows with the folded ones; return whether they are equal."""
        differing = 0
        for differing, difference in enumerate(self._database.differences(rows), start=1):
            if differing <= _NAMED:
                self.findings.append(f"{where}: {difference}")
        if differing > _NAMED:
            self.findings.append(f"{where}: {differing - _NAMED} more rows differ")
        return not differing
