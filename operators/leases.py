"""Scheduled work on appendable files: recovery of those whose writers are gone, and a check of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException

from lockgate.operators.connections.connected import with_connections
from lockgate.operators.dag_run.operator import CONNECTIONS, LockgateOperator
from lockgate.operators.dag_run.page_links import PageLink
from lockgate.operators.dag_run.parameters import check_bool, positive
from lockgate.operators.dag_run.progress import aligned
from lockgate.operators.dag_run.retries import fail_without_retry
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.files.file_recovery import RecoveredFile


SHOWN: Final = 10
"""Findings in the message of the failure; the log has all."""


class LeaseRecoveryOperator(LockgateOperator):
    """Closes each appendable file whose writer has ended, and removes the blocks of deleted files.

    The lease of an ended writer lapses after `LOCKGATE_LEASE_HARD_S`; the task waits for those that are
    overdue. Fails, so that Airflow retries it, if a file could not be recovered: too few of its volumes
    answered. Nothing is lost by that; the next run begins again.

    Args:
        report_only: Recover and remove nothing, only report what would be done.

    Returns:
        `recovered`, the number of files; `removed_blocks`, the number of blocks of deleted files.
    """

    operator_extra_links = (PageLink("Lockgate journal", "journal"),)
    template_fields: Sequence[str] = (*CONNECTIONS, "report_only")
    ui_color = "#fff4e5"

    def __init__(self, *, report_only: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.report_only = report_only

    @fail_without_retry()
    @with_connections
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002 - Airflow's
        """Recover, remove, and return what was done."""
        from lockgate.storage_core.files.home_files import open_files  # noqa: PLC0415 - opens a journal

        check_bool("report_only", self.report_only)
        with open_files(load_settings(), writes=not self.report_only) as files:
            if self.report_only:
                lapsed = files.recovery.lapsed()
                self.log.info("would be recovered: %s", ", ".join(lapsed) or "no file")
                removed = files.remove_deleted(dry_run=True)
                return {"recovered": len(lapsed), "removed_blocks": removed.blocks}
            found = files.recovery.recover_lapsed(note=self._log)
            removed = files.remove_deleted()
        left = [one for one in found if one.why_not]
        self.log.info(
            "%s",
            aligned(
                [
                    ("files recovered", str(len(found) - len(left))),
                    ("blocks removed", str(removed.blocks)),
                    ("blocks kept: a volume did not answer", str(removed.kept_blocks)),
                ]
            ),
        )
        if left:
            raise AirflowException(
                f"{len(left)} files were not recovered, the next run tries again: "
                + "; ".join(f"{one.path}: {one.why_not}" for one in left)
            )
        return {"recovered": len(found), "removed_blocks": removed.blocks}

    def _log(self, one: RecoveredFile) -> None:
        self.log.info("%s: %s", one.path, one.why_not or f"closed at {one.length_bytes} bytes")


class VolumeVerifyOperator(LockgateOperator):
    """Compares the replicas on the volumes with the journal, and reads the bytes of sealed ones.

    It changes nothing. Fails if a replica is lost, stale, corrupt or of another history, or if a volume does
    not answer; the log names each with its file.

    Args:
        path: File or directory to check; empty: all replicas.
        mb_per_s: Megabytes read a second, at most.

    Returns:
        `replicas`, the number that was compared; `verified_bytes`; `left_over`, the number of replicas on
        volumes that are no members any more.
    """

    operator_extra_links = (PageLink("Lockgate journal", "journal"),)
    template_fields: Sequence[str] = (*CONNECTIONS, "path", "mb_per_s")
    ui_color = "#fff4e5"

    def __init__(self, *, path: str = "", mb_per_s: int | str = 20, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.mb_per_s = mb_per_s

    @fail_without_retry()
    @with_connections
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002 - Airflow's
        """Check, and return what was compared."""
        from lockgate.storage_core.files.home_files import open_files  # noqa: PLC0415 - opens a journal

        limit = positive("mb_per_s", self.mb_per_s) * 1_000_000
        wrong: list[str] = []
        left_over = 0
        with open_files(load_settings(), writes=False) as files:
            check = files.check(self.path, verify=True, bytes_per_s=limit)
            for one in check.findings():
                block = "" if one.block is None else f" block {one.block}"
                line = f"{one.problem}: volume {one.volume}{block} {one.path}: {one.detail}"
                self.log.info("%s", line)
                if one.problem == "left over":
                    left_over += 1
                else:
                    wrong.append(line)
        self.log.info("%d replicas compared, %d bytes read", check.replicas, check.verified_bytes)
        if wrong:
            raise AirflowException(
                f"{len(wrong)} findings, nothing was changed: {'; '.join(wrong[:SHOWN])}"
                + ("; …, all are in the log" if len(wrong) > SHOWN else "")
            )
        return {"replicas": check.replicas, "verified_bytes": check.verified_bytes, "left_over": left_over}
