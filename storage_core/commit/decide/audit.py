"""Audit verdicts: each is for the pending sets that a commit would include when the audit began to read."""

from __future__ import annotations

from collections.abc import Mapping

from lockgate.storage_core.commit.decide.task_selection import Chosen, choose, chosen_digest
from lockgate.storage_core.commit.records.codec import digest, encode
from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.pending_set import AuditVerdict, PendingSet
from lockgate.storage_core.errors import AuditFailedError, ConflictError
from lockgate.storage_core.ids import JobAttemptId


def chosen(folder: JobFolder, job_attempt: JobAttemptId) -> str:
    """Return the digest of the pending sets that a commit would include now."""
    return chosen_digest(choose(folder, job_attempt))


def chosen_pending_sets(folder: JobFolder, job_attempt: JobAttemptId) -> tuple[str, list[PendingSet]]:
    """Return the digest, and the pending sets that it is of."""
    selected = choose(folder, job_attempt)
    attempts = {(each.task_id, each.attempt_id) for each in selected}
    sets = [saved.record for saved in folder.pending_sets()]
    return chosen_digest(selected), [each for each in sets if (each.task_id, each.attempt_id) in attempts]


def record(
    folder: JobFolder,
    job_attempt: JobAttemptId,
    *,
    digest: str,
    passed: bool,
    suite: str,
    summary: Mapping[str, str | int | float | bool | None],
    now_s: float,
) -> AuditVerdict:
    """Store the verdict for these pending sets, and return the stored one; see `Job.record_audit`.

    Raises:
        ConflictError: A commit would include other pending sets now.
    """
    if chosen(folder, job_attempt) != digest:
        raise ConflictError(
            f"job {folder.job_id} at {folder.store.url}: a task attempt committed during audit {suite!r}, "
            "which did not read its data; no verdict was recorded; run the audit again"
        )
    verdict = AuditVerdict(
        job_id=folder.job_id,
        chosen_digest=digest,
        passed=passed,
        suite=suite,
        summary=dict(summary),
        decided_s=now_s,
    )
    return claim(folder.store, folder.audit_key(digest), verdict)


def check_audit(folder: JobFolder, job: JobRecord, chosen: list[Chosen]) -> str | None:
    """Return the digest of the audit verdict for the chosen attempts; None if there is none.

    Raises:
        AuditFailedError: The audit failed, or the job requires an audit of exactly these data.
    """
    audited = chosen_digest(chosen)
    verdict = folder.audit(audited)
    if verdict is None:
        if job.spec.audit:
            raise AuditFailedError(
                f"job {folder.job_id} requires an audit, and there is none of exactly these data; "
                "nothing was published; run the audit after the last task commit"
            )
        return None
    if not verdict.passed:
        raise AuditFailedError(
            f"job {folder.job_id}: the audit {verdict.suite!r} failed; nothing was published; "
            f"its verdict is {folder.store.url}/{folder.audit_key(audited)}"
        )
    return digest(encode(verdict))
