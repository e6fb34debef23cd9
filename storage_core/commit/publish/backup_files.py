"""Back up replaced files whose names new files or folders need, as Hadoop's merge does (`file-v1`).

    DEST/a  ──decision──►  DEST/_lockgate/jobs/<job id>/backup/<digest of the key>  ──publication──►  gone
            ◄───────────────────────────────── revert ─────────────────────────────────

A file is backed up by rename, only in the version that the plan names; repeating it is harmless. A revert
writes a marker under each backup key, so a delayed committer cannot back up the file again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from lockgate.storage_core.commit.decide.plan import Plan
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.records.codec import digest
from lockgate.storage_core.commit.records.create_if_absent import create
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.commit.records.report import FileResult
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.file_tree import FileTree

RESTORE_TRIES: Final = 5
CLOSED: Final = b"The job was reverted: nothing makes way for it any more.\n"
"""Content of the marker under a backup key after a revert."""


def backup_key(folder: JobFolder, file: RemovedFile) -> str:
    """Return the key of a file while it is backed up."""
    return folder.key(f"backup/{digest(file.key.encode())}")


def backup_files(folder: JobFolder) -> Iterator[str]:
    """Yield the keys of files that are backed up for a job."""
    for page in folder.store.pages(folder.key("backup/")):
        yield from (info.key for info in page if not _is_closed(folder.store, info.key))


def back_up(context: CommitContext, plan: Plan) -> None:
    """Back up the plan's files that are in the way of others.

    A file that has changed since the plan is not moved: the completion in its way then fails, and the job is
    reverted.
    """
    if isinstance(context.store, FileTree):
        with step("make-way"):
            for file in _in_the_way(plan):
                context.store.move_file(file.listed_key, backup_key(context.folder, file), file.version)


def restore_backups(context: CommitContext, plan: Plan) -> None:
    """Move backups back to their names; a file whose name is taken stays in its backup.

    Raises:
        OutcomeUnknownError: A file was backed up again each time; nothing was deleted; try again.
    """
    if isinstance(context.store, FileTree):
        with step("move-back"):
            for file in _in_the_way(plan):
                context.report.add(_restore(context, context.store, file))


def _restore(context: CommitContext, tree: FileTree, file: RemovedFile) -> FileResult:
    key = backup_key(context.folder, file)
    for _ in range(RESTORE_TRIES):
        try:
            is_restored = tree.move_file(key, file.listed_key, file.version)
        except InvalidInputError:
            is_restored = False  # a parent folder has become a file
        if _close(context.store, key):
            detail = "it has its name" if is_restored else "another version has its name, or none"
            return FileResult(key=file.key, result="kept", detail=f"{detail}; it is not backed up")
    if is_restored:
        raise OutcomeUnknownError(
            f"{context.store.url}/{file.key}: it was restored {RESTORE_TRIES} times and backed up again; "
            f"it may be at {key}; nothing was deleted; run recovery again"
        )
    return FileResult(key=file.key, result="kept", detail=f"something else has its name; it is at {key}")


def _close(store: Store, key: str) -> bool:
    """Create the marker under a backup key, unless a file is there; return whether the marker is there."""
    with suppress(AlreadyExistsError, OutcomeUnknownError):
        create(store, key, CLOSED)
    return _is_closed(store, key)


def _is_closed(store: Store, key: str) -> bool:
    try:
        return store.get(key, length=len(CLOSED) + 1) == CLOSED
    except ObjectNotFoundError:
        return False


def _in_the_way(plan: Plan) -> Iterator[RemovedFile]:
    return (file for file in plan.all_removals() if file.in_the_way)
