"""What every step of the protocol needs at hand: whose job, by which clock, told to whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage_core.clock import Clock
from storage_core.commit.completion import ShardCompleter
from storage_core.commit.fates import FileReport
from storage_core.commit.folder import JobFolder
from storage_core.commit.records.job import JobRecord
from storage_core.parallel import Progress, no_progress
from storage_core.settings import Settings
from storage_core.stores import Store


@dataclass(frozen=True)
class CommitContext:
    """One process at work on one decided job."""

    folder: JobFolder
    job: JobRecord
    settings: Settings
    clock: Clock
    progress: Progress = no_progress
    completer: ShardCompleter | None = None
    report: FileReport = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "report", FileReport(self.folder))

    @property
    def store(self) -> Store:
        """Of the destination."""
        return self.folder.store
