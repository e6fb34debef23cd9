"""Requests of callers: few holders, resources and jobs, so that they conflict often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec
from hypothesis import strategies as st

from lockgate.storage_core.commit.registry.entries import ForgetJob, RecordJob, RecordTask
from lockgate.storage_core.journal import Stamp
from lockgate.storage_core.journal.entries.claim_entries import ClaimName, ReleaseName
from lockgate.storage_core.journal.entries.lease_entries import DropLease, FreeLease, SuspendLease, TakeLease
from lockgate.storage_core.journal.entries.op import Op

HOLDERS: Final = ("ann", "bob")
RESOURCES: Final = ("job:one", "job:two")
SOFT_S: Final = 30.0
HARD_S: Final = 120.0


@dataclass(frozen=True)
class Wish:
    """A requested op of a holder.

    Attributes:
        op: The op; its stamp, if it has one, is filled in when it is requested.
    """

    holder: str
    op: Op

    def with_stamp(self, held: Mapping[tuple[str, str], Stamp]) -> Op:
        """Fill in the stamp with which the holder last took the resource, even if it has lost it."""
        if isinstance(self.op, (SuspendLease, FreeLease)):
            return msgspec.structs.replace(self.op, stamp=held.get((self.holder, self.op.resource), Stamp()))
        return self.op


holders = st.sampled_from(HOLDERS)
resources = st.sampled_from(RESOURCES)
places = st.sampled_from(("s3://a", "s3://b"))
job_ids = st.sampled_from(("etl-g1", "etl-g2"))
names = st.sampled_from(("COMMIT_STARTED", "_SUCCESS"))


@st.composite
def takes(draw: st.DrawFn) -> Wish:
    holder = draw(holders)
    purpose = draw(st.sampled_from(("write", "recover", "take over")))
    limits = draw(st.sampled_from(((SOFT_S, HARD_S), (SOFT_S / 3, HARD_S / 3))))
    detail = draw(st.sampled_from(("", "attempt 2")))
    op = TakeLease(
        resource=draw(resources),
        holder=holder,
        purpose=purpose,
        soft_s=limits[0],
        hard_s=limits[1],
        detail=detail,
    )
    return Wish(holder, op)


@st.composite
def ends(draw: st.DrawFn) -> Wish:
    resource = draw(resources)
    op = draw(
        st.sampled_from(
            (
                SuspendLease(resource=resource, stamp=Stamp(), for_s=2 * HARD_S),
                FreeLease(resource=resource, stamp=Stamp()),
                DropLease(resource=resource),
            )
        )
    )
    return Wish(draw(holders), op)


records = st.builds(
    RecordJob,
    destination=places,
    job_id=job_ids,
    name=st.just("etl"),
    short_id=st.just("a1b2c3"),
    committer=st.just("magic"),
    mode=st.just("append"),
    phase=st.sampled_from(("open", "committing", "aborting", "committed", "failed")),
    job_attempt=st.sampled_from(("", "run-1", "run-2")),
    set_up_s=st.just(1_799_999_000.0),
)
task_records = st.builds(
    RecordTask,
    destination=places,
    job_id=job_ids,
    task_id=st.sampled_from(("task-0", "task-1")),
    attempt_id=st.just("a"),
    job_attempt=st.just("run-1"),
    files=st.integers(0, 3),
    rows=st.none() | st.integers(0, 2**40),
    size_bytes=st.integers(0, 2**45),
)
bodies = st.sampled_from(("QQ==", "Qg=="))
others = st.one_of(
    records,
    task_records,
    st.builds(ForgetJob, destination=places, job_id=job_ids),
    st.builds(ClaimName, store=places, name=names, body=bodies),
    st.builds(
        ReleaseName,
        store=places,
        name=names,
        body_sha256=bodies.map(lambda body: sha256(body.encode()).hexdigest()),
    ),
)

wishes = st.one_of(takes(), takes(), ends(), st.builds(Wish, holders, others))
"""Leases more often than the rest."""
