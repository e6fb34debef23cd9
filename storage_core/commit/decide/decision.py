"""Create the decision, `COMMIT_STARTED`, if absent: to commit or to abort. It is final.

Source: commit protocol, step 5.
"""

from __future__ import annotations

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import process_name
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import (
    Token,
)
from lockgate.storage_core.stamp import Stamp


def decide_commit(
    folder: JobFolder, *, plan: str, turn: int, token: Token, stamp: Stamp, clock: Clock
) -> Decision:
    """Decide to commit a plan in a turn; return the stored decision, which may be another process's.

    The caller has read `job.json` just before: it is gone if a sweep has deleted the job.

    Raises:
        OutcomeUnknownError: It is not known what was decided; recovery reads it.
    """
    decision = Decision(
        job_id=folder.job_id,
        verdict="commit",
        plan=plan,
        turn=turn,
        token=token,
        stamp=stamp,
        decided_s=clock.now_s(),
        decided_by=process_name(),
    )
    with step("decide"):
        return claim(folder.store, folder.key("COMMIT_STARTED"), decision)


def decide_abort(folder: JobFolder, *, reason: str, token: Token, clock: Clock) -> Decision:
    """Decide to abort; return the stored decision, which may be to commit.

    Raises:
        ObjectNotFoundError: There is no such job.
        OutcomeUnknownError: It is not known what was decided; recovery reads it.
    """
    decision = Decision(
        job_id=folder.job_id,
        verdict="abort",
        token=token,
        stamp=Stamp(),
        decided_s=clock.now_s(),
        decided_by=process_name(),
        reason=reason[:2000],
    )
    with step("decide"):
        folder.job()
        return claim(folder.store, folder.key("COMMIT_STARTED"), decision)
