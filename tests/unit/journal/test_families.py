"""Registered entry families are created, versioned, refused by name, and notified of events."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from sqlalchemy import select

from lockgate.storage_core.blobs.registry.references import FailBlobJob, SubmitBlobJob
from lockgate.storage_core.commit.registry.entries import ForgetJob, RecordJob
from lockgate.storage_core.errors import FencedError, JournalVersionError
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import Journal, Leases, open_journal
from lockgate.storage_core.journal.checkpoint.restore import open_survivor, restore
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.journal.database.schema import FAMILY
from lockgate.storage_core.journal.entries import family as family_module
from lockgate.storage_core.journal.entries.family import FAMILIES, Families, Family, known_families
from lockgate.storage_core.journal.entries.lease_entries import DropLease, FencedOp, FreeLease, SuspendLease
from lockgate.storage_core.journal.entries.op import ArtefactsTaken, ResourceEnded
from tests.support.commit.destination import ManualClock
from tests.support.journal.checkpoints import DEST, JournalWorld, job
from tests.support.journal.fruit_family import FRUIT, Eat, Fruit, Ripen

JOB = job_resource(DEST, "job1-g1")

Know = Callable[[str], None]


@pytest.fixture
def know(monkeypatch: pytest.MonkeyPatch) -> Know:
    """Return a function that registers one more family in this process; none for an empty name."""

    def know(name: str) -> None:
        more = (f"tests.support.journal.fruit_family:{name}",) if name else ()
        monkeypatch.setattr(family_module, "FAMILIES", (*FAMILIES, *more))

    return know


def fruit(journal: Journal) -> list[Fruit]:
    with journal.reading() as reading:
        return list(reading.where(Fruit, {}))


def families(journal: Journal) -> list[str]:
    with journal.database.snapshot() as connection:
        return sorted(connection.execute(select(FAMILY.c.name)).scalars())


def test_a_missing_family_is_created_when_a_database_is_opened(journals: JournalWorld, know: Know) -> None:
    with journals.open() as journal:
        assert families(journal) == ["blobs", "files", "jobs", "journal", "mounts"]
    know("FRUIT")
    with journals.open() as journal:
        assert families(journal) == ["blobs", "files", "fruit", "jobs", "journal", "mounts"]
        assert fruit(journal) == []


def test_an_event_reaches_a_family_that_its_publisher_does_not_know(
    journals: JournalWorld, know: Know
) -> None:
    know("FRUIT")
    journals.apply(job(1), job(1, "committed"), ForgetJob(destination=DEST, job_id="job1-g1"))
    with journals.open() as journal:
        assert [(one.resource, one.ended) for one in fruit(journal)] == [(JOB, 2)]


def test_reactions_run_again_when_entries_are_replayed(journals: JournalWorld, know: Know) -> None:
    know("FRUIT")
    journals.apply(job(1), job(1, "committed"))
    journals.checkpoint()
    journals.apply(ForgetJob(destination=DEST, job_id="job1-g1"), job(2, "failed"), Eat(resource="none"))
    assert journals.verify().findings == ()
    before = journals.rows()
    journals.restore(with_entries=True)
    assert journals.rows(journals.spare_url) == before
    assert [one.ended for one in before["fruit"]] == [2, 1]


def test_a_row_that_an_entry_writes_twice_and_never_reads_is_verified(
    journals: JournalWorld, know: Know
) -> None:
    know("FRUIT")
    journals.apply(Ripen(resource="pear"), Ripen(resource="plum"), Ripen(resource="pear"))
    assert journals.verify().findings == ()
    with journals.open() as journal:
        assert [(one.resource, one.ended) for one in fruit(journal)] == [("pear", 2), ("plum", 2)]


def test_verification_detects_a_manually_changed_row_of_a_reaction(
    journals: JournalWorld, know: Know
) -> None:
    know("FRUIT")
    journals.apply(job(1), job(1, "committed"))
    journals.run_sql("UPDATE fruit SET ended = 7")
    (finding,) = journals.verify().findings
    assert finding == f"the tables: fruit {JOB}: ended is 7, and entries give 1"


def test_a_reaction_that_refuses_rolls_back_the_whole_entry(journals: JournalWorld, know: Know) -> None:
    know("FRUIT")
    with journals.open() as journal:
        with pytest.raises(FencedError, match="blobs of up: fruit refuses"):
            journal.apply(SubmitBlobJob(job_id="up", blob_keys=(), destination=DEST, commit_job="job1-g1"))
        assert fruit(journal) == []
        assert journal.status().stamp.sequence == 0


def test_rows_that_a_reaction_needs_are_read_with_the_entry(know: Know) -> None:
    know("FRUIT")
    touched = list(known_families().touches(ForgetJob(destination=DEST, job_id="job1-g1")))
    assert (Fruit, (JOB,)) in touched


@pytest.mark.parametrize(
    ("written", "known", "named"),
    [
        ("FRUIT", "", "the entry family 'fruit' in version 1, and this program lacks it"),
        ("SECOND_FRUIT", "FRUIT", "the entry family 'fruit' in version 2, and this program knows version 1"),
        ("FRUIT", "SECOND_FRUIT", "the entry family 'fruit' in version 1, and this program knows version 2"),
    ],
    ids=["unknown", "newer", "older"],
)
def test_a_database_and_a_checkpoint_with_another_family_are_refused_by_its_name(
    journals: JournalWorld, know: Know, written: str, known: str, named: str
) -> None:
    know(written)
    journals.apply(job(1), job(1, "committed"))
    journals.checkpoint()
    know(known)
    for opening in (open_journal, lambda url: open_survivor(url, "main")):
        with pytest.raises(JournalVersionError, match=named):
            opening(journals.url)
    with journals.open(journals.spare_url) as empty:
        with pytest.raises(JournalVersionError, match=named):
            restore(empty, journals.checkpoints)
        with pytest.raises(JournalVersionError, match=named), empty.reading() as reading:
            verify(reading, journals.checkpoints)
        assert empty.status().stamp.sequence == 0


def test_two_families_with_the_same_name_table_or_kind_of_entry_are_refused() -> None:
    def other(**changes: object) -> Family:
        plain = Family(name="other", version=1, rows=(), ops=())
        return msgspec.structs.replace(plain, **changes)

    for twice, what in (
        (other(name="fruit"), "name: fruit"),
        (other(rows=(Fruit,)), "table: fruit"),
        (other(ops=(Eat,)), "kind of entry: eat"),
    ):
        with pytest.raises(ValueError, match=f"have the same {what}"):
            Families([FRUIT, twice])


def test_reactions_run_in_the_order_of_the_families_names() -> None:
    first = msgspec.structs.replace(FRUIT, name="a", rows=(), ops=())
    families = Families([FRUIT, first])
    assert [family.name for family in families] == ["a", "fruit"]
    assert list(families.reactions(ResourceEnded)) == [first.reactions[0], FRUIT.reactions[0]]
    assert list(families.reactions(ArtefactsTaken)) == []


def test_every_entry_that_must_name_its_writers_stamp_is_fenced_by_the_one_base() -> None:
    """Entries that others may write without a lease have an optional stamp, and compare it themselves."""
    ops = [op for family in known_families() for op in family.ops]
    stamps = {op: field for op in ops for field in msgspec.structs.fields(op) if field.name == "stamp"}
    assert (
        {op for op in stamps if stamps[op].required}
        == {op for op in ops if issubclass(op, FencedOp)}
        != set()
    )
    assert {op for op in stamps if not stamps[op].required} == {RecordJob, FailBlobJob}


@pytest.mark.parametrize("standing", ["newer", "freed", "gone"])
def test_a_fenced_entry_at_a_lost_stamp_is_refused_before_its_own_fold(
    timed_journal: Journal, standing: str
) -> None:
    leases = Leases(timed_journal)
    old = leases.take("r", "h", purpose="write", soft_s=1, hard_s=2)
    if standing == "newer":
        leases.take("r", "g", purpose="take over", soft_s=1, hard_s=2)
    else:
        leases.free("r", old)
    if standing == "gone":
        timed_journal.apply(DropLease(resource="r"))
    for op in (FreeLease(resource="r", stamp=old), SuspendLease(resource="r", stamp=old, for_s=1)):
        with pytest.raises(FencedError, match="change nothing more"):
            timed_journal.apply(op)


def test_a_lapsed_lease_that_nobody_has_taken_still_fences_nobody(
    timed_journal: Journal, clock: ManualClock
) -> None:
    stamp = Leases(timed_journal).take("r", "h", purpose="write", soft_s=1, hard_s=2)
    clock.sleep(1_000)
    timed_journal.apply(SuspendLease(resource="r", stamp=stamp, for_s=1))
