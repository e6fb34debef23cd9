"""The complete life cycle of a journal: checkpoints, pruning, restore, safe mode, reads at an observer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from lockgate.storage_core.errors import SafeModeError, StateLostError
from lockgate.storage_core.journal import Journal, Reading, Stamp, open_journal
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints, take_checkpoint
from lockgate.storage_core.journal.checkpoint.prune import prune
from lockgate.storage_core.journal.checkpoint.restore import restore
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from tests.model.journal.machine import JournalMachine, processes, table
from tests.model.journal.model import JournalModel, Table, without_renewals
from tests.model.journal.requests import Wish, wishes
from tests.support.journal.observers import SnapshotObserver


class JournalLifeMachine(JournalMachine):
    """Add the actions of operators, and two clients that read at an observer which sometimes catches up.

    Attributes:
        new_url: Creates an empty database to restore into.
        root: Folder of the checkpoints.
        kept: State of the model at each existing checkpoint.
        verified: Checkpoints that have been verified.
    """

    new_url: ClassVar[Callable[[], str]]
    root: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        store = open_store(str(self.root / "checkpoints"), load_settings(home=self.root, journal_url="none"))
        self.checkpoints = Checkpoints(store, self.name)
        self.kept: dict[Stamp, JournalModel] = {}
        self.verified: set[Stamp] = set()
        self._observe()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._close_observers()

    # Actions of operators

    @rule(seconds=st.sampled_from((1_000.0, 100_000.0)))
    def long_time_passes(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @rule()
    def take_a_checkpoint(self) -> None:
        with self.journals[0].reading() as reading:
            taken, is_new = take_checkpoint(reading, self.checkpoints)
        assert taken.stamp == self.model.stamp
        assert is_new == (taken.stamp not in self.kept)
        self.kept.setdefault(taken.stamp, self.model.copy())

    @rule()
    def verify_all(self) -> None:
        with self.journals[1].reading() as reading:
            verification = verify(reading, self.checkpoints)
        assert verification.findings == ()
        assert verification.stamp == self.model.stamp
        self.verified.update(verification.checkpoints)

    @rule(retention_s=st.sampled_from((60.0, 10_000.0)), is_proved=st.booleans())
    def prune(self, retention_s: float, is_proved: bool) -> None:
        """Prune only entries in a verified checkpoint; prune nothing in safe mode."""
        if is_proved:
            self.take_a_checkpoint()
            self.verify_all()
        if self.model.is_safe:
            with pytest.raises(SafeModeError):
                prune(self.journals[0], self.checkpoints, kept=2, request_retention_s=retention_s)
            return
        pruned = prune(self.journals[0], self.checkpoints, kept=2, request_retention_s=retention_s)
        if pruned.up_to is not None:
            assert pruned.up_to in self.verified
            assert pruned.up_to in self.kept
            self.model.pruned = max(self.model.pruned, pruned.up_to.sequence)
        for stamp in pruned.checkpoints:
            assert stamp != pruned.up_to
            del self.kept[stamp]
        self.model.forget_requests(self.clock.now - retention_s)

    @rule()
    def leave_safe_mode(self) -> None:
        """Leave it for each of its reasons; the last of them renews the leases."""
        reasons = [one.reason for one in self.journals[0].status().safe_reasons] or [""]
        left = [leave_safe_mode(self.journals[0], reason) for reason in reasons]
        assert left == [0] * (len(reasons) - 1) + [self.model.leave_safe_mode(self.clock.now)]

    @rule(has_entries=st.booleans(), process=processes, several=st.lists(wishes, max_size=3))
    def restore(self, has_entries: bool, process: int, several: list[Wish]) -> None:
        """Restore into an empty database, with or without the old entries; the clients move to it."""
        if not self.kept:
            self.take_a_checkpoint()
        for wish in several:
            self.ask(process, wish)
        newest = max(self.kept)
        url = type(self).new_url()
        target = open_journal(url, self.name, clock=self.clock)
        restored = restore(target, self.checkpoints, source=self.journals[0] if has_entries else None)
        assert restored.stamp.epoch > self.model.epoch

        at_checkpoint = self.kept[newest]
        model = self.model if has_entries else at_checkpoint.copy()
        model.known = {**at_checkpoint.known, **model.known}
        model.requests_since_s = at_checkpoint.requests_since_s
        model.epoch, model.pruned, model.is_safe = restored.stamp.epoch, newest.sequence, True
        model.holders = {}  # the rows of leases have their renewals until the checkpoint
        self.model = model
        self.points = [point for point in self.points if point.sequence <= model.sequence] or self.points[:1]
        self._move_to(target, url)
        if has_entries:
            self._adopt_renewals()
        self._assert_losses_are_reported(newest if not has_entries else model.stamp)

    # Actions of readers

    @rule()
    def tail(self) -> None:
        self.observer.catch_up()

    @rule(process=processes)
    def read(self, process: int) -> None:
        self._read(self.clients[process])

    @rule(process=processes)
    def msync_and_read(self, process: int) -> None:
        client = self.clients[process]
        assert client.msync() == self.model.stamp
        assert self._read(client) == self.model.stamp

    @rule(process=processes, wish=wishes)
    def tail_write_and_read(self, process: int, wish: Wish) -> None:
        """Read at an observer that lags behind the reader's own write."""
        self.tail()
        self._read(self.clients[process])
        self.ask(process, wish)
        self._read(self.clients[process])

    @rule()
    def hand_a_token_on(self) -> None:
        """A client that receives a token reads everything that its sender has seen."""
        giver, taker = self.clients
        seen = giver.journal.seen
        taker.see(giver.token)
        assert self._read(taker) >= seen

    # Implementation

    def _read(self, client: Client) -> Stamp:
        seen = client.journal.seen
        stamp, tables = client.read(all_tables)
        assert seen <= stamp <= client.journal.seen
        assert tables == self.model.history[stamp.sequence]
        return stamp

    def _reopen(self, process: int) -> None:
        super()._reopen(process)
        self.clients[process] = self._client(self.journals[process])

    def _move_to(self, target: Journal, url: str) -> None:
        """Reopen both processes at another database."""
        self.tokens = [client.token for client in self.clients]
        self._close_observers()
        for journal in self.journals:
            journal.close()
        self.url = url  # type: ignore[misc]  # of this journal from now on
        self.journals = [target, self._open()]
        self._observe()

    def _assert_losses_are_reported(self, kept: Stamp) -> None:
        """A client that has seen lost entries gets an error until an explicit msync."""
        for client, token in zip(self.clients, self.tokens, strict=True):
            client.see(token)
            if any(stamp > kept for stamp in token.for_journal(self.name)):
                with pytest.raises(StateLostError):
                    client.read(all_tables)
                client.msync()
            self._read(client)

    def _adopt_renewals(self) -> None:
        """Copy the renewals into the model: no entry records which of them survived."""
        with self.journals[0].reading() as reading:
            for lease in reading.where(Lease, {}):
                row = self.model.tables["lease"][lease.key]
                row.update(renewed_s=lease.renewed_s, dropped_s=lease.dropped_s)

    def _observe(self) -> None:
        self.observer = SnapshotObserver(self.url, self.journals[0])
        self.clients = [self._client(journal) for journal in self.journals]

    def _client(self, journal: Journal) -> Client:
        return Client(journal, [self.observer], clock=self.clock)

    def _close_observers(self) -> None:
        self.observer.close()


def all_tables(reading: Reading) -> tuple[Stamp, dict[str, Table]]:
    """Return all tables of a state without the renewals."""
    tables: dict[str, Any] = {kind.TABLE: table(reading.where(kind, {})) for kind in known_families().rows}
    return reading.status().stamp, without_renewals(tables)
