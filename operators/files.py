"""Scheduled work on appendable files: recovery of those whose writers are gone, and upkeep of replicas."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from lockgate.operators.dag_run.log_tables import LoggedProgress, log_table
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.page_links import PageLink
from lockgate.operators.dag_run.parameters import check_bool, positive
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from airflow.sdk import Context

COLOR: Final = "#fff4e5"
JOURNAL_LINK: Final = (PageLink("Lockgate journal", "journal"),)
SHOWN: Final = 10
"""Findings in the message of the failure; the log has all."""


@templated
class LeaseRecoveryOperator(LockgateOperator):
    """Closes each appendable file whose writer has ended, and removes the blocks of deleted files.

    Before that, it deletes the event logs of forgotten jobs, and of those that ended `LOCKGATE_TOMBSTONE_S`
    ago.

    The lease of an ended writer lapses after `LOCKGATE_LEASE_HARD_S`; the task waits for those that are
    overdue. Fails, so that Airflow retries it, if a file could not be recovered: too few of its volumes
    answered. Nothing is lost by that; the next run begins again. In safe mode nothing of deleted files is
    removed; the log says why.

    Args:
        report_only: Recover and remove nothing, only report what would be done.

    Returns:
        `recovered`, the number of files; `removed_blocks`, the number of blocks of deleted files.
    """

    operator_extra_links = JOURNAL_LINK
    ui_color = COLOR

    def __init__(self, *, report_only: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.report_only = report_only

    @task_entry
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002 - Airflow's
        """Recover, remove, and return what was done."""
        from lockgate.storage_core.event_log.event_files import delete_old_logs
        from lockgate.storage_core.files.scheduled_work import recover_files

        check_bool("report_only", self.report_only)
        options = {"note": partial(self.log.info, "%s")}
        delete_old_logs(load_settings(), dry_run=self.report_only, **options)
        done = recover_files(load_settings(), report_only=self.report_only, **options)
        left = [one for one in done.files if one.why_not]
        self.log.info(
            "%s:\n%s",
            "would be done" if self.report_only else "done",
            log_table(
                ("what", "number"),
                [
                    ("files recovered", len(done.files) - len(left)),
                    ("blocks removed", done.removed.blocks),
                    ("blocks kept: a volume did not answer", done.removed.kept_blocks),
                ],
            ),
        )
        if done.held_back:
            self.log.warning("nothing of deleted files was removed: %s", done.held_back)
        if left:
            raise AirflowException(
                f"{len(left)} files were not recovered, the next run tries again: "
                + "; ".join(f"{one.path}: {one.why_not}" for one in left)
            )
        return {"recovered": len(done.files), "removed_blocks": done.removed.blocks}


@templated
class FileRetentionOperator(LockgateOperator):
    """Deletes closed appendable files by path pattern and age, in bounded batches, and empty directories.

    It is also what empties the old side of a satellite. The space is freed by the next lease recovery. A run
    that was stopped goes on in the next one; the log names each path.

    Args:
        rules: Days by pattern, such as `{"/logs/**": 7}`; by default `LOCKGATE_FILES_RETENTION`. Without any
            the task is skipped.
        report_only: Delete nothing, only name what would be deleted.

    Returns:
        `files`, `directories` and `size_bytes` of what was deleted, or would be.
    """

    ui_color = COLOR

    def __init__(
        self, *, rules: dict[str, float] | None = None, report_only: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.rules = rules
        self.report_only = report_only

    @task_entry
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002 - Airflow's
        """Delete, and return the counts."""
        from lockgate.storage_core.satellite.expired_files import apply_retention
        from lockgate.storage_core.satellite.open_overlay import open_files

        check_bool("report_only", self.report_only)
        settings = load_settings()
        if not (rules := self.rules or settings.files_retention):
            raise AirflowSkipException('no rules: set LOCKGATE_FILES_RETENTION, such as {"/logs/**": 7}')
        verb = "would delete" if self.report_only else "deleted"
        with open_files(settings) as files:
            done = apply_retention(
                files,
                rules,
                dry_run=self.report_only,
                note=lambda path: self.log.info("%s %s", verb, path),
                progress=LoggedProgress(self.log),
            )
        return {"files": done.files, "directories": done.directories, "size_bytes": done.size_bytes}


@templated
class VolumeUpkeepOperator(LockgateOperator):
    """Checks the replicas on the volumes, reading the bytes of sealed ones, and repairs what is wrong.

    As `lockgate volumes check`, and with `repair` then `lockgate volumes repair`: a replica that is lost,
    stale or damaged is taken out of use, its block copied to another volume, and replicas that no block names
    any more are deleted. Fails if something is wrong that could not be repaired, or a volume does not answer;
    the log names each replica with its file. Without `repair`, or with a path, nothing is changed, and the
    task fails if a replica is wrong.

    Args:
        path: File or directory to check; empty: all replicas.
        repair: Repair what is wrong.
        mb_per_s: Megabytes read, or copied, a second, at most.

    Returns:
        `replicas`, the number that was compared; `read_bytes`; of a repair also `marked`, the number of
        replicas that were taken out of use, `copied` and `deleted`.
    """

    operator_extra_links = JOURNAL_LINK
    ui_color = COLOR

    def __init__(
        self, *, path: str = "", repair: bool = False, mb_per_s: int | str = 20, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.repair = repair
        self.mb_per_s = mb_per_s

    @task_entry
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002 - Airflow's
        """Check, repair, and return what was compared and done."""
        from lockgate.storage_core.files.scheduled_work import maintain_volumes

        check_bool("repair", self.repair)
        done = maintain_volumes(
            load_settings(),
            self.path,
            repair=self.repair,
            bytes_per_s=positive("mb_per_s", self.mb_per_s) * 1e6,
            note=partial(self.log.info, "%s"),
            progress=LoggedProgress(self.log),
        )
        self.log.info("%d replicas compared, %d bytes read", done.replicas, done.read_bytes)
        changes = self.repair and not self.path
        if done.problems:
            changed = f"{done.marked} replicas taken out of use, {done.copied} copied"
            raise AirflowException(
                f"{len(done.problems)} findings, {changed if changes else 'nothing was changed'}: "
                + "; ".join(done.problems[:SHOWN])
                + ("; …, all are in the log" if len(done.problems) > SHOWN else "")
            )
        counts = {"replicas": done.replicas, "read_bytes": done.read_bytes}
        if changes:
            counts |= {"marked": done.marked, "copied": done.copied, "deleted": done.deleted}
        return counts
