"""Verifying: what the entries say, folded again, must be what the checkpoints and the tables hold.

It begins as far back as entries reach, not at the newest checkpoint: so a checkpoint that was just copied
from the tables is proved by the one before it, and may be pruned to. What it folds lies in a temporary
database, so that a journal of any size is verified in little memory.
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
from lockgate.storage_core.journal.checkpoint.temp_database import Scratch, scratch
from lockgate.storage_core.journal.entries.rows import Request, Row
from lockgate.storage_core.journal.read.epochs import read_epochs, survived
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp

_NAMED: Final = 20
"""Differing rows of one place that are named; the rest are counted."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What verifying a journal has found.

    Attributes:
        since: Of the checkpoint under the first folded entry; 0.0 where they reach back to the beginning.
        stamp: The newest entry.
        entries: Folded.
        checkpoints: Those that hold what folding gave: pruning may go up to the newest of them.
        findings: Each names an entry, a row or a checkpoint that is wrong; none in a sound journal.
    """

    since: Stamp
    stamp: Stamp
    entries: int
    checkpoints: tuple[Stamp, ...]
    findings: tuple[str, ...]

    def check(self) -> None:
        """Raise if anything is wrong.

        Raises:
            MalformedJournalError: Names all that is.
        """
        if self.findings:
            raise MalformedJournalError("; ".join(self.findings))


def verify(reading: Reading, checkpoints: Checkpoints, progress: Progress = no_progress) -> Verification:
    """Fold the entries again and compare with every checkpoint on the way and with the tables at the end.

    A checkpoint that holds what folding gave is vouched for. Nothing else is written, in the journal nothing.

    Args:
        reading: One state, on the primary or on an observer.
        checkpoints: Of this journal.
        progress: Hears the entries.

    Raises:
        JournalVersionError: A checkpoint has a family of entries that this program does not know, or a newer
            version of one; the message names the family.
        JournalUnavailableError: There is no room for temporary files.
    """
    with step("verify"), scratch() as beside:
        reading.stay_open()
        verifying = _Verifying(reading, checkpoints, beside, progress)
        verification = verifying.run()
        for stamp, end in verifying.good.items():  # anew each time: an earlier word may be of another file
            checkpoints.vouch(stamp, end, reading.now_s())
    return verification


class _Verifying:
    """One run over one state.

    Attributes:
        findings: What is wrong so far.
        good: The last lines of the checkpoints that hold what folding gave.
    """

    def __init__(
        self, reading: Reading, checkpoints: Checkpoints, beside: Scratch, progress: Progress
    ) -> None:
        self._reading = reading
        self._checkpoints = checkpoints
        self._progress = progress
        self._status = reading.status()
        self._epochs = read_epochs(reading)
        self._beside = beside
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
        """Tell whether a checkpoint is of this history, and no entry after it was pruned."""
        is_here = stamp <= self._status.stamp and survived(self._epochs, stamp)
        return is_here and stamp.sequence >= self._status.pruned_sequence

    def _begin(self, ahead: list[Stamp]) -> Stamp:
        """Load the oldest checkpoint that entries follow; where one is damaged, the next."""
        while ahead:
            stamp = ahead.pop(0)
            self._beside.clear()
            try:
                with self._checkpoints.open(stamp, self._status.identity) as snapshot:
                    load(
                        self._beside.folded, (row for row in snapshot.rows() if not isinstance(row, Request))
                    )
                    if stamp.sequence == self._status.pruned_sequence:  # else nothing proves it
                        self.good[stamp] = snapshot.end
            except MalformedJournalError as error:
                self.findings.append(str(error))
                continue
            except ObjectNotFoundError:  # pruned meanwhile
                continue
            self._folded = stamp.sequence
            return stamp
        raise MalformedJournalError(
            f"entries up to {self._status.pruned_sequence} were pruned, and no checkpoint that can be read "
            "leads on from there: nothing proves the tables; copy the database, then take a checkpoint"
        )

    def _fold_up_to(self, sequence: int) -> None:
        for entries in batches(self._reading, self._folded, sequence):
            replay(self._beside.folded, entries, self._epochs)
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
        """Compare rows with the folded ones; returns whether they are the same."""
        differing = 0
        for differing, difference in enumerate(self._beside.differences(rows), start=1):
            if differing <= _NAMED:
                self.findings.append(f"{where}: {difference}")
        if differing > _NAMED:
            self.findings.append(f"{where}: {differing - _NAMED} more rows differ")
        return not differing
