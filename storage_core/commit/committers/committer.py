"""Committers that stream, and the base of all: it says where a task's files wait, and when they are visible.

All committers share one engine: a file is a pending upload, listed in a pending set. The decision of the job
adds all its pending sets to the destination's log.
Source: S3A committers, "The Magic Committer".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from lockgate.storage_core.commit.records.job_record import ScopeName
from lockgate.storage_core.commit.records.pending_set import PendingFile
from lockgate.storage_core.commit.uploads.pending_file_writer import PendingFileWriter

VisibleAt = Literal["job commit", "task commit", "close"]
Place = Literal["any store", "file systems"]


class Uploads(Protocol):
    """The part of an attempt that a committer uses."""

    @property
    def staging_dir(self) -> Path:
        """Private directory of the attempt, created with mode 0700 on first use."""

    @property
    def temporary_dir(self) -> Path:
        """Private hidden directory of the attempt inside the destination; on file systems only."""

    @property
    def files(self) -> Sequence[PendingFile]:
        """The attempt's pending files so far."""

    @property
    def opened(self) -> Mapping[str, BinaryIO]:
        """Files that were opened for writing and not dropped, by path."""

    def open_upload(self, path: str) -> PendingFileWriter:
        """Open a file that is streamed into a pending upload."""

    def add_file(self, local: Path, path: str, *, adopt: bool = False) -> None:
        """Turn a finished file into a pending upload."""

    def drop(self, path: str) -> None:
        """Drop one file, complete or not."""

    def publish_early(self, files: Iterable[PendingFile]) -> None:
        """Make pending files visible before the job commits; the job's end decides which ones stay."""


@dataclass(frozen=True, kw_only=True)
class Committer(ABC):
    """Where uncommitted data wait, and what that allows.

    Attributes:
        name: Name in a job's specification.
        uncommitted: Where uncommitted data lie, for people.
        use: Recommended use, for people.
        visible_at: When a file first appears in listings; readers of the log see it at the job commit.
        place: Kind of store that it can write to.
        scope: Default scope of the conflict mode.
        safe: Whether it may be used without `allow_unsafe`.
    """

    name: str
    uncommitted: str
    use: str
    visible_at: VisibleAt = "job commit"
    place: Place = "any store"
    scope: ScopeName = "destination"
    safe: bool = True

    @abstractmethod
    def open(self, uploads: Uploads, path: str) -> BinaryIO:
        """Open a file for an attempt to write."""

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:  # noqa: B027 - most committers do nothing
        """Run after a file is completely written and pending."""

    def before_task_commit(self, uploads: Uploads) -> None:  # noqa: B027 - most committers do nothing
        """Turn every file that the attempt wrote into a pending upload."""

    def after_task_commit(self, uploads: Uploads) -> None:  # noqa: B027 - most committers do nothing
        """Run after the pending set was created; may be repeated."""


@dataclass(frozen=True, kw_only=True)
class MagicCommitter(Committer):
    """Streams files into uploads at their final keys; needs no disk."""

    name: str = "magic"
    uncommitted: str = "open uploads at the final key"
    use: str = "default for writers that stream"

    def open(self, uploads: Uploads, path: str) -> BinaryIO:
        """Open an upload at the final key."""
        return uploads.open_upload(path)  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class DirectCommitter(MagicCommitter):
    """Streams files and publishes each when it is closed, also those of attempts that are not selected."""

    name: str = "direct"
    uncommitted: str = "the final key"
    use: str = "comparison only; wants allow_unsafe=True"
    visible_at: VisibleAt = "close"
    safe: bool = False

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:
        """Publish the file."""
        uploads.publish_early([file])
