"""What every step of the protocol needs at hand: whose job, by which clock, told to whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage_core.clock import Clock
from storage_core.commit.completion import ShardCompleter
from storage_core.commit.folder import JobFolder
from storage_core.commit.parallel import Progress, no_progress
from storage_core.commit.records import FileFate, JobRecord
from storage_core.settings import Settings
from storage_core.stores import Store

MAX_FATES = 10_000
"""How many files a report names; the rest is counted."""


@dataclass
class Fates:
    """What became of files, as far as this process saw it; bounded."""

    by_key: dict[str, FileFate] = field(default_factory=dict)
    omitted: int = 0

    def add(self, fate: FileFate) -> None:
        """Note a file's fate; the first one counts, so a loser's upload does not hide the winner's file."""
        if fate.key in self.by_key:
            return
        if len(self.by_key) < MAX_FATES:
            self.by_key[fate.key] = fate
        else:
            self.omitted += 1


@dataclass(frozen=True)
class JobWork:
    """One process at work on one decided job."""

    folder: JobFolder
    job: JobRecord
    settings: Settings
    clock: Clock
    progress: Progress = no_progress
    completer: ShardCompleter | None = None
    fates: Fates = field(default_factory=Fates)

    @property
    def store(self) -> Store:
        """Of the destination."""
        return self.folder.store
