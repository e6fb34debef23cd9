"""What a committer decides: where a task's file waits until the task commits.

From the task commit on, all committers are alike: a file is a pending upload, named in a pending set.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Protocol

from storage_core.commit.writer import PendingFileWriter


class Uploads(Protocol):
    """What a committer may ask of an attempt."""

    @property
    def staging_dir(self) -> Path:
        """A directory of this attempt's own, made with mode 0700 when first asked for."""

    def open_upload(self, path: str, *, content_type: str | None = None) -> PendingFileWriter:
        """Open a file that is streamed into a pending upload."""

    def add_file(self, local: Path, path: str, *, rows: int | None = None) -> None:
        """Turn a finished file into a pending upload."""


class Committer(Protocol):
    """Where uncommitted data wait, and what that allows."""

    @property
    def name(self) -> str:
        """As it stands in a job's specification."""

    @property
    def visible_at(self) -> str:
        """When a file is first seen."""

    @property
    def repeatable(self) -> bool:
        """Whether a task commit that failed half-way can be tried again."""

    @property
    def recovers_tasks(self) -> bool:
        """Whether a second job attempt can take over committed tasks of the first."""

    def open(self, uploads: Uploads, path: str, content_type: str | None) -> BinaryIO:
        """Open a file for an attempt to write."""

    def before_task_commit(self, uploads: Uploads) -> None:
        """Make every file that the attempt wrote a pending upload."""
