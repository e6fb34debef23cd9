"""Records of a job decide about its blobs in the same transaction, from any process and however late."""

from __future__ import annotations

import pytest

from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, Guarantee, Reference
from lockgate.storage_core.blobs.registry.references import SubmitBlobJob, TakeReference
from lockgate.storage_core.blobs.registry.removals import MarkDeleting
from lockgate.storage_core.blobs.registry.upload_sets import (
    BeginUpload,
    CompleteUpload,
    PutBlob,
    upload_resource,
)
from lockgate.storage_core.commit.leases.registration import releases
from lockgate.storage_core.commit.registry.entries import ForgetJob, RecordJob
from lockgate.storage_core.commit.registry.rows import Phase
from lockgate.storage_core.errors import ConflictError, FencedError, ObjectNotFoundError
from lockgate.storage_core.journal import Journal, Mutation, Refused
from lockgate.storage_core.journal.entries.lease_entries import TakeLease
from tests.support.commit.destination import ManualClock

LAKE = "s3://lake/sales"
UPLOAD = "etl-upload"


def job_record(
    phase: Phase = "open", *, attempt: str = "run-1", set_up_s: float = 1.0, job_id: str = "sales-g1"
) -> RecordJob:
    return RecordJob(
        destination=LAKE, job_id=job_id, name="sales", short_id="abcdefghij", committer="magic",
        mode="append", phase=phase, job_attempt=attempt, set_up_s=set_up_s,
    )  # fmt: skip


def uploaded(journal: Journal, job_id: str = UPLOAD, *, guarantee: Guarantee = "ha") -> str:
    """Upload one blob in its own set; returns its key."""
    upload_set = f"set-of-{job_id}-{guarantee}"
    journal.apply(
        TakeLease(
            resource=upload_resource(upload_set), holder="ann", purpose="write", soft_s=60.0, hard_s=1200.0
        )
    )
    journal.apply(BeginUpload(upload_set=upload_set, job_id=job_id))
    key = f"{guarantee}-blob"
    journal.apply(
        PutBlob(
            job_id=job_id,
            blob_key=key,
            upload_set=upload_set,
            guarantee=guarantee,
            use="library",
            name="rates.py",
            size_bytes=3,
            joins=True,
        )
    )
    journal.apply(CompleteUpload(upload_set=upload_set))
    return key


def submission(*keys: str, job_id: str = UPLOAD, commit_job: str = "sales-g1") -> SubmitBlobJob:
    return SubmitBlobJob(job_id=job_id, blob_keys=keys, destination=LAKE, commit_job=commit_job)


def set_up(journal: Journal, *keys: str, attempt: str = "run-1") -> None:
    """Set up a job as a driver does: it releases what the one before it left, and registers itself."""
    record = job_record(attempt=attempt)
    outcomes = journal.write(
        [*releases(journal, record), Mutation(op=record), Mutation(op=submission(*keys))]
    )
    assert not [one for one in outcomes if isinstance(one, Refused)]


def is_final(journal: Journal, job_id: str = UPLOAD) -> bool:
    with journal.reading() as reading:
        job = reading.get(BlobJob, job_id)
    assert job is not None
    return job.final_s is not None


def owners(journal: Journal, key: str) -> set[str]:
    with journal.reading() as reading:
        return {one.owner for one in reading.where(Reference, {"job_id": UPLOAD, "blob_key": key})}


def is_staged(journal: Journal, key: str) -> bool:
    with journal.reading() as reading:
        blob = reading.get(Blob, UPLOAD, key)
    assert blob is not None
    return blob.staged_s is not None


def test_a_sweep_that_chose_a_blob_before_its_reference_does_not_delete_it(timed_journal: Journal) -> None:
    key = uploaded(timed_journal)
    timed_journal.apply(TakeReference(job_id=UPLOAD, blob_key=key, owner="viewer:1"))
    chosen = MarkDeleting(job_id=UPLOAD, blob_key=key, staged_for_s=0.0)
    assert timed_journal.apply(chosen).result is False


@pytest.mark.parametrize("phase", ["committed", "failed"])
def test_the_end_of_a_job_ends_its_blobs_whichever_process_records_it(
    timed_journal: Journal, phase: Phase
) -> None:
    set_up(timed_journal, uploaded(timed_journal))
    timed_journal.apply(job_record("committing", attempt=""))
    assert not is_final(timed_journal)
    timed_journal.apply(job_record(phase, attempt=""))
    assert is_final(timed_journal)


def test_the_end_of_a_job_ends_all_its_uploads_and_those_of_no_other_job(timed_journal: Journal) -> None:
    for job_id, commit_job in (("a", "sales-g1"), ("b", "sales-g1"), ("c", "sales-g2")):
        timed_journal.apply(submission(job_id=job_id, commit_job=commit_job))
    timed_journal.apply(job_record("failed"))
    assert [is_final(timed_journal, job_id) for job_id in "abc"] == [True, True, False]


def test_a_new_driver_releases_recreatable_blobs_and_keeps_the_rest(timed_journal: Journal) -> None:
    library, message = uploaded(timed_journal), uploaded(timed_journal, guarantee="recreatable")
    set_up(timed_journal, library)
    for key, owner in ((message, "receiver:1"), (library, "viewer:1")):
        timed_journal.apply(TakeReference(job_id=UPLOAD, blob_key=key, owner=owner))

    set_up(timed_journal, library, attempt="run-2")

    assert owners(timed_journal, library) == {"job", "viewer:1"}
    assert owners(timed_journal, message) == set()
    assert not is_staged(timed_journal, library)
    assert is_staged(timed_journal, message)
    assert not is_final(timed_journal)


def test_a_new_driver_references_the_blobs_of_its_setup_once(
    timed_journal: Journal, clock: ManualClock
) -> None:
    library, scratch = uploaded(timed_journal), uploaded(timed_journal, guarantee="recreatable")
    set_up(timed_journal, library, scratch)
    first_s = clock.now_s()
    clock.sleep(60)

    set_up(timed_journal, library, scratch, attempt="run-2")

    with timed_journal.reading() as reading:
        taken = {one.blob_key: one.taken_s for one in reading.where(Reference, {"owner": "job"})}
    assert taken == {library: first_s, scratch: clock.now_s()}
    assert not is_staged(timed_journal, scratch)


def test_a_late_record_of_an_older_job_ends_no_blobs_of_the_newer_job_of_the_same_id(
    timed_journal: Journal,
) -> None:
    timed_journal.apply(job_record(set_up_s=2.0))
    timed_journal.apply(submission(uploaded(timed_journal)))
    timed_journal.apply(job_record("failed", set_up_s=1.0))
    assert not is_final(timed_journal)


def test_a_job_set_up_again_at_an_emptied_destination_ends_the_blobs_of_the_older_one(
    timed_journal: Journal,
) -> None:
    set_up(timed_journal, uploaded(timed_journal))
    newer = uploaded(timed_journal, "newer")
    timed_journal.apply(job_record(set_up_s=2.0))
    timed_journal.apply(submission(newer, job_id="newer"))
    assert is_final(timed_journal)
    assert not is_final(timed_journal, "newer")


def test_a_forgotten_job_leaves_no_blobs(timed_journal: Journal) -> None:
    set_up(timed_journal, uploaded(timed_journal))
    timed_journal.apply(ForgetJob(destination=LAKE, job_id="sales-g1"))
    assert is_final(timed_journal)


def test_an_ended_job_accepts_no_blobs_because_nothing_would_end_them(timed_journal: Journal) -> None:
    key = uploaded(timed_journal)
    timed_journal.apply(job_record("failed"))
    timed_journal.apply(job_record())  # its driver, which was suspended
    with pytest.raises(FencedError, match=r"sales-g1 at .* has ended"):
        timed_journal.apply(submission(key))
    assert owners(timed_journal, key) == set()


def test_a_job_does_not_accept_blobs_uploaded_for_another(timed_journal: Journal) -> None:
    key = uploaded(timed_journal)
    set_up(timed_journal, key)
    with pytest.raises(ConflictError, match="belong to job sales-g1 at s3://lake/sales"):
        timed_journal.apply(submission(key, commit_job="sales-g2"))
    timed_journal.apply(job_record("failed"))
    assert is_final(timed_journal)


def test_missing_blobs_are_not_referenced_and_the_job_is_recorded_all_the_same(
    timed_journal: Journal,
) -> None:
    key = uploaded(timed_journal)
    recorded, refused = timed_journal.write([Mutation(op=job_record()), Mutation(op=submission(key, "gone"))])
    assert not isinstance(recorded, Refused)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, ObjectNotFoundError)
    assert "etl-upload/gone is gone" in str(refused.error)
    assert owners(timed_journal, key) == set()
    with timed_journal.reading() as reading:
        assert reading.where(BlobJob, {}) == []
