"""Add the loss of the database: replaced under open processes, or put back from a copy while none runs."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy import update

from lockgate.storage_core.errors import StateLostError
from lockgate.storage_core.journal import Journal, Leases, Stamp
from lockgate.storage_core.journal.database.schema import HEAD
from lockgate.storage_core.journal.entries.lease_entries import Lease
from tests.model.journal.machine import JournalMachine, processes
from tests.model.journal.model import JournalModel
from tests.model.journal.requests import Wish, wishes


class JournalLossMachine(JournalMachine):
    """Processes that work on while their database is another one, and copies that are put back.

    Attributes:
        copy: A copy of the SQLite file, and the model at that time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copy: tuple[Path, JournalModel] | None = None

    @property
    def path(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///"))

    @rule(process=processes, wish=wishes)
    def use_another_journal(self, process: int, wish: Wish) -> None:
        with self._head(identity="another"):
            self._is_refused(process, wish)

    @rule(process=processes, wish=wishes, back=st.integers(1, 3))
    def use_an_older_state(self, process: int, wish: Wish, back: int) -> None:
        """Only a process that has seen the newest entries can know."""
        journal, older = self.journals[process], self.model.sequence - back
        if older >= 0 and journal.known.newest > Stamp(self.model.epoch, older):
            with self._head(sequence=older):
                self._is_refused(process, wish)

    @precondition(lambda self: self.url.startswith("sqlite"))
    @rule()
    def copy_the_file(self) -> None:
        copy = self.path.with_name(f"{self.name}.copy")
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        self.copy = copy, self.model.copy()

    @precondition(lambda self: self.copy is not None)
    @rule()
    def put_the_copy_back(self) -> None:
        assert self.copy is not None
        copy, model = self.copy
        for journal in self.journals:
            journal.close()
        shutil.copyfile(copy, self.path)
        self.journals = [self._open() for _ in self.journals]
        status = self.journals[0].status()
        if max(self.stamps, default=Stamp()) > model.stamp:
            assert status.stamp.epoch > self.model.epoch or self.model.stamp not in self.stamps
            assert status.safe_since_s is not None
        if status.stamp != model.stamp:  # noticed: also an epoch that no answer has named
            assert status.stamp.epoch > max(stamp.epoch for stamp in (*self.stamps, model.stamp))
            assert self.model.stamp > model.stamp
        self.model = model.copy()
        self.model.epoch = status.stamp.epoch
        self.model.is_safe = status.safe_since_s is not None
        if status.stamp != model.stamp:
            self._forget_renewals()
        self.points = [point for point in self.points if point.sequence <= model.sequence]

    def _forget_renewals(self) -> None:
        """Adopt the renewals that a noticed put-back left: each lease counts as renewed when it was taken."""
        self.model.holders.clear()
        with self.journals[0].reading() as reading:
            for found in reading.where(Lease, {}):
                lease = self.model.tables["lease"][found.key]
                assert found.renewed_s <= lease["renewed_s"]
                lease["renewed_s"] = found.renewed_s

    def _is_refused(self, process: int, wish: Wish) -> None:
        """Every call raises the error; the invariants show that nothing changes."""
        journal = self.journals[process]
        calls: list[Callable[[Journal], object]] = [
            lambda journal: journal.write([self._mutation(wish)]),
            lambda journal: Leases(journal).renew(wish.holder, {"job:one": Stamp(1, 1)}),
            Journal.status,
            Journal.msync,
        ]
        for call in calls:
            with pytest.raises(StateLostError):
                call(journal)

    @contextmanager
    def _head(self, **columns: Any) -> Iterator[None]:
        """Change the head's row during the block, as if another database stood in its place."""
        journal = self.journals[0]
        before = {"identity": journal.identity, "sequence": self.model.sequence}
        for values in (columns, {name: before[name] for name in columns}):
            with journal.database.write() as connection:
                connection.execute(update(HEAD).where(HEAD.c.journal == self.name).values(values))
            if values is columns:
                yield
