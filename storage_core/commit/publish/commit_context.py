"""Hold what each step of the protocol needs: the job, the settings, the clock and the report."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.publish.file_report import FileReport
from lockgate.storage_core.commit.publish.shard_completion import ShardCompleter
from lockgate.storage_core.commit.records.job import JobRecord
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store


@dataclass(frozen=True)
class CommitContext:
    """The work of one process on one decided job.

    Attributes:
        tasks: Number of tasks that the job publishes, if this process has selected them.
    """

    folder: JobFolder
    job: JobRecord
    settings: Settings
    clock: Clock
    progress: Progress = no_progress
    completer: ShardCompleter | None = None
    tasks: int | None = None

    @cached_property
    def report(self) -> FileReport:
        """Fates of the job's files, as this process knows them."""
        return FileReport(self.folder)

    @property
    def store(self) -> Store:
        """Store, opened at the destination."""
        return self.folder.store
