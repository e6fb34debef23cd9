"""Verifying: what the entries say, folded again, must be what the checkpoints and the tables hold.

It begins as far back as entries reach, not at the newest checkpoint: so a checkpoint that was just copied
from the tables is proved by the one before it, and may be pruned to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from storage_core.errors import MalformedJournalError, ObjectNotFoundError
from storage_core.failpoints import step
from storage_core.journal.checkpoint import Checkpoints
from storage_core.journal.epochs import read_epochs, survived
from storage_core.journal.progress import Progress, no_progress
from storage_core.journal.reading import Reading
from storage_core.journal.replay import MemoryRows, batches, load, replay
from storage_core.journal.rows import ROWS, Lease, Row
from storage_core.journal.snapshot import End, Request, table_rows
from storage_core.stamp import Stamp

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
    """
    with step("verify"):
        reading.stay_open()
        verifying = _Verifying(reading, checkpoints, progress)
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

    def __init__(self, reading: Reading, checkpoints: Checkpoints, progress: Progress) -> None:
        self._reading = reading
        self._checkpoints = checkpoints
        self._progress = progress
        self._status = reading.status()
        self._epochs = read_epochs(reading)
        self._rows = MemoryRows()
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
            stamp, self._rows = ahead.pop(0), MemoryRows()
            try:
                with self._checkpoints.open(stamp, self._status.identity) as snapshot:
                    load(self._rows, (row for row in snapshot.rows() if not isinstance(row, Request)))
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
            replay(self._rows, entries, self._epochs)
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
        differing: list[str] = []
        seen: dict[type[Row], set[tuple[Any, ...]]] = {kind: set() for kind in ROWS}
        for row in rows:
            seen[type(row)].add(row.key)
            differing += _difference(row, self._rows.all(type(row)).get(row.key))
        for kind in ROWS:
            missing = self._rows.all(kind).keys() - seen[kind]
            differing += [
                f"{kind.TABLE} {_name(key)} is missing, and entries made it" for key in sorted(missing)
            ]
        self.findings += [f"{where}: {words}" for words in differing[:_NAMED]]
        if len(differing) > _NAMED:
            self.findings.append(f"{where}: {len(differing) - _NAMED} more rows differ")
        return not differing


def _difference(row: Row, folded: Row | None) -> list[str]:
    if isinstance(row, Lease) and isinstance(folded, Lease):
        folded = msgspec.structs.replace(folded, renewed_s=row.renewed_s)  # the one field outside the fold
    if row == folded:
        return []
    name = f"{row.TABLE} {_name(row.key)}"
    if folded is None:
        return [f"{name} is there, and no entry made it"]
    column, found, expected = next(
        (column, found, expected)
        for column in row.__struct_fields__
        if (found := getattr(row, column)) != (expected := getattr(folded, column))
    )
    return [f"{name}: {column} is {found!r}, and entries give {expected!r}"]


def _name(key: tuple[Any, ...]) -> str:
    return "/".join(str(part) for part in key)
