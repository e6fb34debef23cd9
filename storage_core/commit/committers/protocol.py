"""What a committer decides: where a task's file waits, and when it is first seen.

All committers stand on one engine: a file is a pending upload, named in a pending set, which one decision of
the job makes part of the destination's log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from lockgate.storage_core.commit.records.job import PendingFile, Scope
from lockgate.storage_core.commit.uploads.pending_file import PendingFileWriter

VisibleAt = Literal["job commit", "task commit", "close"]
Place = Literal["any store", "file systems"]


class Uploads(Protocol):
    """What a committer may ask of an attempt."""

    @property
    def staging_dir(self) -> Path:
        """A directory of this attempt's own, made with mode 0700 when first asked for."""

    @property
    def temporary_dir(self) -> Path:
        """A hidden directory of this attempt's own inside the destination; on file systems only."""

    @property
    def files(self) -> Sequence[PendingFile]:
        """What the attempt has made pending so far."""

    @property
    def opened(self) -> Mapping[str, BinaryIO]:
        """What was opened for writing and not dropped, by path."""

    def open_upload(self, path: str) -> PendingFileWriter:
        """Open a file that is streamed into a pending upload."""

    def add_file(self, local: Path, path: str, *, rows: int | None = None) -> None:
        """Turn a finished file into a pending upload."""

    def show(self, files: Iterable[PendingFile]) -> None:
        """Let readers that list see pending files before the job commits; its end settles which stay."""


class Committer(Protocol):
    """Where uncommitted data wait, and what that allows."""

    @property
    def name(self) -> str:
        """As it stands in a job's specification."""

    @property
    def uncommitted(self) -> str:
        """Where its uncommitted data lie, for people."""

    @property
    def use(self) -> str:
        """What it is for, for people."""

    @property
    def visible_at(self) -> VisibleAt:
        """When a reader that lists the destination first sees a file; by the log: always the job commit."""

    @property
    def place(self) -> Place:
        """What it can write to."""

    @property
    def scope(self) -> Scope:
        """What the conflict mode looks at unless the job says otherwise."""

    @property
    def safe(self) -> bool:
        """Whether it may be used without `allow_unsafe`."""

    @property
    def merges(self) -> bool:
        """Whether in `replace` old files make way for folders of their names, and old folders for files."""

    @property
    def repeatable(self) -> bool:
        """Whether a task commit that failed half-way can be tried again without anyone having seen a part."""

    @property
    def recovers_tasks(self) -> bool:
        """Whether a second job attempt can take over committed tasks of the first."""

    def open(self, uploads: Uploads, path: str) -> BinaryIO:
        """Open a file for an attempt to write."""

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:
        """Do what follows when a file is wholly written and pending."""

    def before_task_commit(self, uploads: Uploads) -> None:
        """Make every file that the attempt wrote a pending upload."""

    def after_task_commit(self, uploads: Uploads) -> None:
        """Do what follows when the pending set stands; may be repeated."""
