"""What every step of the protocol needs at hand: whose job, by which clock, told to whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.publish.file_report import Fates
from lockgate.storage_core.commit.publish.shard_completion import ShardCompleter
from lockgate.storage_core.commit.records.job import JobRecord
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store


@dataclass(frozen=True)
class JobWork:
    """One process at work on one decided job."""

    folder: JobFolder
    job: JobRecord
    settings: Settings
    clock: Clock
    progress: Progress = no_progress
    completer: ShardCompleter | None = None
    fates: Fates = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fates", Fates(self.folder))

    @property
    def store(self) -> Store:
        """Of the destination."""
        return self.folder.store
