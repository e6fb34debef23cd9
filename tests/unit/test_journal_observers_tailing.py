"""The embedded observer: it follows its primary, changes nothing there, and may be killed anywhere."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    JournalVersionError,
    MalformedJournalError,
    ObjectNotFoundError,
)
from storage_core.failpoints import FAILPOINTS
from storage_core.journal import Journal, Leases, LeaseState, Stamp, open_journal
from storage_core.journal.observers import Tailer, open_tailer
from storage_core.journal.observers.tailer import BATCH, RENEWALS_EVERY_S
from storage_core.journal.ops.jobs import RecordJob
from storage_core.journal.ops.leases import DropLease, FreeLease, state_of
from storage_core.journal.rows import Lease
from storage_core.journal.schema import ENTRY, HEAD
from tests.commit_world import ManualClock, crash_at
from tests.observer_world import ObserverWorld, asked, content, figure, lose_after, take


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ObserverWorld]:
    opened = ObserverWorld(tmp_path)
    yield opened
    opened.close()


def write_all_kinds(journal: Journal) -> None:
    """Write entries that insert, change and remove rows of several tables."""
    first, second = take(journal, "a"), take(journal, "b")
    journal.apply(FreeLease(resource="a", stamp=first))
    journal.apply(DropLease(resource="a"))
    journal.apply(FreeLease(resource="b", stamp=second))
    for phase in ("open", "committed"):
        journal.apply(
            RecordJob(
                destination="file:///d", job_id="j-g1", name="j", short_id="aaaaaaaaaa", committer="magic",
                mode="append", phase=phase, job_attempt="1", set_up_s=1.0,
            )
        )  # fmt: skip


def primary_of(world: ObserverWorld) -> dict[str, object]:
    with world.journal.reading() as reading:
        return content(reading)


def copy_of(world: ObserverWorld, number: int = 0) -> dict[str, object]:
    with world.tailers[number]._mirror.database.snapshot() as connection:
        return content(world.tailers[number]._mirror._reading(connection))


def copied_until(world: ObserverWorld) -> int:
    """Return the newest entry that came by the slow path."""
    status = world.tailers[0]._mirror.status()
    assert status is not None
    return status.pruned_sequence


def dump(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        lines = list(connection.iterdump())
    connection.close()
    return lines


def test_a_copy_is_made_and_then_follows_by_entries(world: ObserverWorld) -> None:
    take(world.journal)
    tailer = world.tailer()
    assert tailer.poll() == 1
    write_all_kinds(world.journal)
    assert tailer.poll() == 7
    assert tailer.poll() == 0
    assert copy_of(world) == primary_of(world)
    assert copied_until(world) == 1
    with world.client().journal.reading() as primary, world.tailers[0]._mirror.database.snapshot() as copy:
        assert world.tailers[0]._mirror._reading(copy).entries(1, 100) == primary.entries(1, 100)


def test_the_primary_is_not_changed_by_its_observers(world: ObserverWorld) -> None:
    write_all_kinds(world.journal)
    before = dump(world.root / "journal.db")
    tailer, client = world.tailer(), world.client()
    tailer.poll()
    client.read(asked)
    client.msync()
    client.observers()
    tailer.poll()
    assert dump(world.root / "journal.db") == before


def test_a_primary_that_does_not_change_costs_the_copy_no_write(world: ObserverWorld) -> None:
    tailer = world.tailer()
    write_all_kinds(world.journal)
    for _ in range(2):
        tailer.poll()
    hits: list[str] = []
    FAILPOINTS.observer = hits.append
    try:
        tailer.poll()
    finally:
        FAILPOINTS.observer = None
    assert [hit for hit in hits if "observer" in hit] == []


def test_a_tailer_that_is_killed_anywhere_leaves_one_state_and_its_successor_goes_on(tmp_path: Path) -> None:
    number, died = 0, 0
    while True:
        world = ObserverWorld(tmp_path / str(number))
        write_all_kinds(world.journal)

        def follow(world: ObserverWorld = world) -> None:
            tailer = world.tailer()
            tailer.poll()
            write_all_kinds(world.another_process())
            world.clock.now += RENEWALS_EVERY_S
            tailer.poll()

        point = crash_at(number, follow)
        if point is not None and world.tailers:
            died += 1
            status = world.tailers[0]._mirror.status()
            with world.journal.reading() as reading:
                assert status is None or status.stamp <= reading.status().stamp
        tailer = world.tailer()
        while tailer.poll():
            pass
        assert copy_of(world, -1) == primary_of(world)
        world.close()
        if point is None:
            break
        number += 1
    assert died >= 8


def test_a_copy_that_died_amid_following_still_is_at_one_state(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    before = copy_of(world)
    write_all_kinds(world.journal)
    FAILPOINTS.arm({"tail.observer-commit.before": "lost"})
    try:
        with pytest.raises(Exception, match="failpoint"):
            tailer.poll()
    finally:
        FAILPOINTS.arm({})
    assert copy_of(world) == before


def test_of_two_tailers_of_one_file_the_slower_changes_nothing(
    world: ObserverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    slow, fast = world.tailer(), world.tailer()
    slow.poll()
    write_all_kinds(world.journal)
    overtake(slow, fast.poll)
    assert copy_of(world) == primary_of(world)
    lose_after(world.another_process(), 2)
    overtake(slow, fast.poll)
    assert copy_of(world) == primary_of(world)
    assert caplog.text == ""


def overtake(tailer: Tailer, meanwhile: Callable[[], object]) -> None:
    """Let something happen when a tailer has read and is about to write."""

    def observe(point: str) -> None:
        if point == "tail.observer-write.before":
            FAILPOINTS.observer = None
            meanwhile()

    FAILPOINTS.observer = observe
    try:
        tailer.poll()
    finally:
        FAILPOINTS.observer = None


def test_many_entries_are_followed_in_bounded_batches(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    for _ in range(BATCH + 3):
        take(world.journal)
    assert (tailer.poll(), tailer.poll(), tailer.poll()) == (BATCH, 3, 0)
    assert copy_of(world) == primary_of(world)
    assert copied_until(world) == 0


def test_a_copy_that_is_far_behind_is_made_anew(world: ObserverWorld) -> None:
    tailer = world.tailer(far_behind=5)
    tailer.poll()
    write_all_kinds(world.journal)
    assert tailer.poll() == 7
    assert copied_until(world) == 7
    assert copy_of(world) == primary_of(world)


def test_a_copy_whose_next_entries_were_pruned_is_made_anew(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    write_all_kinds(world.journal)
    prune(world.journal, 3)
    assert tailer.poll() == 7
    assert copied_until(world) == 7
    assert copy_of(world) == primary_of(world)


def prune(journal: Journal, sequence: int) -> None:
    with journal.database.write() as connection:
        connection.execute(delete(ENTRY).where(ENTRY.c.sequence <= sequence))
        connection.execute(update(HEAD).values(pruned_sequence=sequence))


def test_entries_that_the_primary_prunes_are_pruned_in_the_copy(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    write_all_kinds(world.journal)
    tailer.poll()
    prune(world.journal, 3)
    tailer.poll()
    assert copied_until(world) == 3
    with tailer._mirror.database.snapshot() as connection:
        entries = tailer._mirror._reading(connection).entries(0, 100)
    assert [entry.sequence for entry in entries] == [4, 5, 6, 7]


def test_a_new_epoch_of_the_primary_makes_the_copy_anew_without_what_was_lost(world: ObserverWorld) -> None:
    tailer = world.tailer()
    for _ in range(3):
        take(world.journal)
    tailer.poll()
    lose_after(world.another_process(), 1)
    assert tailer.poll() == -2
    assert copy_of(world) == primary_of(world)
    take(world.journal)
    assert tailer.poll() == 1
    assert copy_of(world) == primary_of(world)


def test_a_new_epoch_is_noticed_although_it_has_used_the_lost_numbers_again(world: ObserverWorld) -> None:
    tailer = world.tailer()
    for _ in range(3):
        take(world.journal)
    tailer.poll()
    lose_after(world.another_process(), 1)
    for _ in range(3):
        take(world.journal)
    assert tailer.poll() == 1
    assert copy_of(world) == primary_of(world)


def test_a_gap_in_the_entries_makes_the_copy_anew_and_is_told(
    world: ObserverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    tailer = world.tailer()
    tailer.poll()
    write_all_kinds(world.journal)
    with world.journal.database.write() as connection:
        connection.execute(delete(ENTRY).where(ENTRY.c.sequence == 4))
    assert tailer.poll() == 0
    assert "entry 4" in caplog.text
    assert "lockgate journal verify" in caplog.text
    assert tailer.poll() == 7
    assert copy_of(world) == primary_of(world)


def test_an_entry_that_does_not_follow_makes_the_copy_anew_and_is_told(
    world: ObserverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    tailer = world.tailer()
    tailer.poll()
    take(world.journal)
    with world.journal.database.write() as connection:
        connection.execute(update(ENTRY).values(op="a-kind-of-the-future"))
    assert (tailer.poll(), tailer.poll()) == (0, 1)
    assert "a-kind-of-the-future" in caplog.text
    assert copy_of(world) == primary_of(world)


def test_renewals_reach_the_copy_although_no_entry_says_them(world: ObserverWorld) -> None:
    tailer, leases = world.tailer(), Leases(world.journal)
    stamp = take(world.journal, "a")
    tailer.poll()
    world.clock.now += 100
    assert leases.renew("h", {"a": stamp}) == {}
    tailer.poll()
    (lease,) = world.client().read(lambda reading: reading.where(Lease, {}))
    assert state_of(lease, world.clock.now_s()) is LeaseState.HELD
    assert copy_of(world) == primary_of(world)


def test_a_renewal_by_a_later_holder_is_not_taken_for_one_by_the_earlier(world: ObserverWorld) -> None:
    # The batch ends before the entry by which the lease changes hands, and the new holder has renewed since:
    # were its renewal copied, that entry would find a lease that lives, and be refused.
    tailer, leases = world.tailer(), Leases(world.journal)
    tailer.poll()
    take(world.journal, "a")
    for _ in range(BATCH - 1):
        take(world.journal)
    world.clock.now += 1000
    again = leases.take("a", "h", purpose="recover", soft_s=30, hard_s=120)
    world.clock.now += 10
    leases.renew("h", {"a": again})
    assert (tailer.poll(), tailer.poll()) == (BATCH, 1)
    assert copy_of(world) == primary_of(world)


def test_safe_mode_reaches_the_copy_although_no_entry_says_it(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    with world.journal.database.write() as connection:
        connection.execute(update(HEAD).values(safe_since_s=5.0, safe_reason="restored"))
    tailer.poll()
    status = tailer._mirror.status()
    assert status is not None
    assert (status.safe_since_s, status.safe_reason) == (5.0, "restored")


def test_the_lag_of_a_copy_is_told(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    take(world.journal)
    world.clock.now += 3.0
    tailer.poll()
    name = tailer._mirror.database.name
    assert figure("observer_lag_seconds", observer=name) == 3.0
    tailer.poll()
    assert figure("observer_lag_seconds", observer=name) == 0.0


def test_a_copy_of_another_journal_is_left_as_it_is(world: ObserverWorld, tmp_path: Path) -> None:
    world.tailer().poll()
    before = copy_of(world)
    with open_journal(f"sqlite:///{tmp_path / 'other.db'}") as other:
        take(other)
    with (
        open_tailer(f"sqlite:///{tmp_path / 'other.db'}", world.file(0)) as wrong,
        pytest.raises(MalformedJournalError, match="another journal"),
    ):
        wrong.poll()
    assert copy_of(world) == before


def test_a_file_that_is_no_observers_is_left_as_it_is(world: ObserverWorld) -> None:
    before = dump(world.root / "journal.db")
    with pytest.raises(InvalidInputError, match="no observer's file"):
        open_tailer(world.url, world.root / "journal.db")
    assert dump(world.root / "journal.db") == before


def test_an_observers_file_is_no_journal_to_write_to(world: ObserverWorld) -> None:
    world.tailer().poll()
    with pytest.raises(InvalidInputError, match="observer's copy"):
        open_journal(f"sqlite:///{world.file(0)}")


def test_a_copy_of_another_version_is_made_anew(world: ObserverWorld) -> None:
    take(world.journal)
    world.tailer().poll()
    with sqlite3.connect(world.file(0)) as copy:
        copy.execute("UPDATE alembic_version SET version_num = '9999'")
        copy.execute("ALTER TABLE lease DROP COLUMN detail")
    copy.close()
    assert world.tailer().poll() == 1
    assert copy_of(world, 1) == primary_of(world)


def test_a_primary_that_is_not_there_or_of_another_version_is_refused_and_not_made(
    world: ObserverWorld, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.db"
    with pytest.raises(ObjectNotFoundError, match="no journal at"):
        open_tailer(f"sqlite:///{missing}", world.file(0))
    assert not missing.exists()
    empty = tmp_path / "empty.db"
    empty.touch()
    with pytest.raises(JournalVersionError, match="version"):
        open_tailer(f"sqlite:///{empty}", world.file(0))
    assert not world.file(0).exists()


class LoopClock(ManualClock):
    """Notes each wait of a loop, and ends the loop after some."""

    def __init__(self, stop: threading.Event, meanwhile: list[Callable[[], object]]) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.stop = stop
        self.meanwhile = meanwhile

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        else:
            self.stop.set()
        return event.is_set()


def test_a_running_tailer_looks_more_seldom_while_nothing_happens(world: ObserverWorld) -> None:
    stop = threading.Event()
    nothing = [lambda: None] * 5
    clock = LoopClock(stop, [*nothing, lambda: take(world.journal)])
    with open_tailer(world.url, world.file(0), clock=clock) as tailer:
        tailer.run(stop)
        assert clock.waits == [0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.001]
    assert world.client().read(asked) == ("observer-0", 1)


def test_a_running_tailer_waits_out_a_primary_that_cannot_be_reached(
    world: ObserverWorld, tmp_path: Path
) -> None:
    stop = threading.Event()
    tries: list[str] = []

    def fail(point: str) -> None:
        if point == "tail.journal-read.before":
            tries.append(point)
            if len(tries) == 1:
                raise JournalUnavailableError("the connection is refused")

    clock = LoopClock(stop, [lambda: None])
    take(world.journal)
    with open_tailer(world.url, world.file(0), clock=clock) as tailer:
        FAILPOINTS.observer = fail
        try:
            tailer.run(stop)
        finally:
            FAILPOINTS.observer = None
    assert clock.waits[0] == 1.0
    assert world.client().read(asked) == ("observer-0", 1)


def test_a_copied_file_may_begin_another_observer(world: ObserverWorld) -> None:
    take(world.journal)
    world.tailer(0).poll()
    world.tailers.pop().close()
    shutil.copy(world.file(0), world.file(1))
    take(world.journal)
    tailer = world.tailer(1)
    assert tailer.poll() == 1
    assert copied_until(world) == 1
    assert tailer._mirror.status() is not None
    assert copy_of(world)["stamp"] == Stamp(1, 2)
