"""Values that a database cannot store are refused before they join a group commit."""

from __future__ import annotations

import math

import msgspec
import pytest

from lockgate.storage_core.blobs.registry.references import SubmitBlobJob
from lockgate.storage_core.blobs.registry.upload_sets import PutBlob
from lockgate.storage_core.commit.registry.entries import RecordTask
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal import Journal, Mutation, Stamp
from lockgate.storage_core.journal.entries.lease_entries import Lease, TakeLease
from lockgate.storage_core.journal.entries.op import Op


def take(resource: str = "a", *, detail: str = "", soft_s: float = 30, hard_s: float = 120) -> TakeLease:
    return TakeLease(
        resource=resource, holder="h", purpose="write", soft_s=soft_s, hard_s=hard_s, detail=detail
    )


def record(size_bytes: int) -> RecordTask:
    return RecordTask(
        destination="s3://lake", job_id="j-g1", task_id="t", attempt_id="1", job_attempt="1", files=1, rows=1,
        size_bytes=size_bytes,
    )  # fmt: skip


def put(*owners: str) -> PutBlob:
    return PutBlob(
        job_id="j", blob_key="k", upload_set="u", guarantee="ha", use="other", name="n", size_bytes=1,
        owners=owners,
    )  # fmt: skip


@pytest.mark.parametrize(
    "op",
    [
        take("a\0b"),
        take("a\ud800b"),
        take(detail="\0"),
        take("x" * 2_401),
        take("ü" * 1_201),
        take(soft_s=math.nan),
        take(hard_s=math.inf),
        record(2**63),
        put("a\0b"),
        put("fine", "\ud800"),
        put("x" * 2_400),
        SubmitBlobJob(job_id="j", blob_keys=("a\0b",)),
        SubmitBlobJob(job_id="j", blob_keys=(), destination="x" * 2_401),
    ],
    ids=[
        "null", "surrogate", "null in detail", "long", "long in bytes", "nan", "infinite", "65 bits",
        "null in an owner", "surrogate in an owner", "long owner", "null in a key", "long destination",
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_stored_is_refused_and_nothing_is_changed(journal: Journal, op: Op) -> None:
    with pytest.raises(InvalidInputError, match="nothing was changed"):
        journal.write([Mutation(op=take("good")), Mutation(op=op)])
    assert journal.apply(take("good")).stamp == Stamp(1, 1)


def test_a_request_id_that_cannot_be_stored_is_refused(journal: Journal) -> None:
    with pytest.raises(InvalidInputError, match="request_id"):
        journal.apply(take(), "a\0b")
    with pytest.raises(InvalidInputError, match="2401 bytes long"):
        journal.apply(take(), "x" * 2_401)


def test_a_holder_too_long_for_an_index_is_refused(journal: Journal) -> None:
    with pytest.raises(InvalidInputError, match="2401 bytes long"):
        journal.apply(msgspec.structs.replace(take(), holder="x" * 2_401))


def test_the_longest_names_and_largest_numbers_are_stored_unchanged(journal: Journal) -> None:
    names = ["x" * 2_400, "ü" * 1_200, "\U0001f512 'quoted' \"%s\" \\ :colon {brace}\n\t"]
    for name in names:
        journal.apply(take(name, detail="d" * 1_000_000, soft_s=5e-324, hard_s=1.7976931348623157e308))
    journal.apply(record(2**63 - 1))
    with journal.reading() as reading:
        leases = reading.where(Lease, {})
    assert {lease.resource for lease in leases} == set(names)
    assert {(lease.soft_s, lease.hard_s) for lease in leases} == {(5e-324, 1.7976931348623157e308)}


def test_an_empty_write_adds_no_entry(journal: Journal) -> None:
    assert journal.write([]) == []
    assert journal.status().stamp == Stamp(1, 0)
