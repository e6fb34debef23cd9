"""Mutants of the commit, audits, rights and workers."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules.mutant import Edit, Mutant

LAST_ATTEMPT: Final = "tests/unit/commit/test_last_attempt.py::test_"
RIGHTS: Final = "tests/unit/operators/test_allow_lists.py::test_"
STAGED: Final = "tests/unit/workers/test_staged.py::test_"

MUTANTS: Final = (
    Mutant(
        "audit-other-bytes-than-uploaded",
        "an audit verdict counts only if the staged files have the bytes that were uploaded",
        [Edit("operators/audits/staged_rows.py", "if found != uploaded:", "if len(found) != len(uploaded):")],
        f"{STAGED}an_audit_refuses_a_staged_file_whose_bytes_are_not_those_that_were_uploaded",
    ),
    Mutant(
        "audit-while-a-file-changes",
        "an audit verdict counts only if no staged file changed while the suite read it",
        [Edit("operators/audits/staged_rows.py", "if state != self.seen[path]:", "if state is None:")],
        f"{STAGED}an_audit_refuses_a_staged_file_that_changed_and_changed_back",
    ),
    Mutant(
        "allow-neighbours-of-a-root",
        "a form may name what is below a root, not what begins with its name",
        [
            Edit(
                "operators/trigger_rights.py",
                'root.rstrip("/") + "/"',
                'root.rstrip("/")',
            )
        ],
        f"{RIGHTS}a_source_is_compared_as_spark_would_resolve_it",
    ),
    Mutant(
        "bind-a-verdict-to-what-is-there-now",
        "an audit verdict is bound to the pending sets from before the audit",
        [
            Edit(
                "storage_core/commit/decide/audit.py",
                "if chosen(folder, job_attempt) != digest:",
                "if not digest:",
            )
        ],
        "tests/unit/commit/recovery/test_recovery.py::"
        "test_an_audit_during_which_a_task_attempt_commits_gets_no_verdict",
    ),
    Mutant(
        "take-a-refusal-for-a-failure",
        "a task that a worker of another version refuses is sent to another worker",
        [Edit("workers/gather.py", 'if isinstance(meta.get("result"), REFUSALS):', "if not meta:")],
        "tests/unit/workers/test_gather.py::"
        "test_a_task_that_a_worker_of_another_version_refuses_is_sent_to_another",
    ),
    Mutant(
        "order-attempts-by-id",
        "a task commit is numbered after those before it",
        [
            Edit(
                "storage_core/commit/task/task_commit.py",
                "1 + len(ended.committed - {record.attempt_id})",
                "1",
            ),
            Edit(
                "storage_core/commit/decide/task_selection.py",
                "_Place(found.stamp, created_s, attempt)",
                "_Place(found.stamp, 0.0, attempt)",
            ),
        ],
        f"{LAST_ATTEMPT}of_attempts_in_any_order_on_any_clocks_the_last_commit_of_the_greatest_try_wins",
    ),
    Mutant(
        "order-attempts-by-the-writers-clock",
        "a retry counts on any clock",
        [
            Edit(
                "storage_core/commit/task/task_commit.py",
                "1 + len(ended.committed - {record.attempt_id})",
                "int(record.created_s)",
            )
        ],
        f"{LAST_ATTEMPT}a_retry_wins_on_a_clock_that_is_an_hour_off",
    ),
    Mutant(
        "ignore-try-numbers",
        "a retry counts before what it retries, even if that commits later",
        [Edit("storage_core/commit/task/attempt.py", "stamp=Stamp(self._try_number)", "stamp=Stamp()")],
        f"{LAST_ATTEMPT}a_retry_that_gives_its_try_number_wins_over_what_it_retries_even_if_that_commits_later",
    ),
)
