"""Replaced files that make way for folders or files of their names, as Hadoop's merge has it (`file-v1`).

    DEST/a  ──decision──►  DEST/_lockgate/jobs/<job id>/aside/<digest of the key>  ──publication──►  gone
            ◄───────────────────────────────── revert ─────────────────────────────────

By rename, only the version that the plan saw, and as often as anyone likes. A revert leaves a mark where each
would lie aside: a committer that wakes up behind it finds the place taken, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from lockgate.storage_core.commit.decide.plan import Plan
from lockgate.storage_core.commit.publish.commit_context import JobWork
from lockgate.storage_core.commit.records.codec import digest
from lockgate.storage_core.commit.records.job import FileFate, RemovedFile
from lockgate.storage_core.commit.records.job_folder import JobFolder, create
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.file_tree import FileTree

MOVE_BACK_TRIES: Final = 5
CLOSED: Final = b"The job was reverted: nothing makes way for it any more.\n"
"""What stands where a file would lie aside once it has its name for good."""


def aside_key(folder: JobFolder, file: RemovedFile) -> str:
    """Key at which a file lies that has made way."""
    return folder.key(f"aside/{digest(file.key.encode())}")


def files_aside(folder: JobFolder) -> Iterator[str]:
    """Yield the keys at which files lie that have made way for a job, and did not get their names back."""
    for page in folder.store.pages(folder.key("aside/")):
        yield from (info.key for info in page if not _is_closed(folder.store, info.key))


def move_aside(work: JobWork, plan: Plan) -> None:
    """Let the plan's files that are in the way make way.

    One that changed since stays: the completion that it hinders then fails, and the job is reverted.
    """
    if isinstance(work.store, FileTree):
        with step("make-way"):
            for file in _in_the_way(plan):
                work.store.move_file(file.key, aside_key(work.folder, file), file.version)


def move_back(work: JobWork, plan: Plan) -> None:
    """Give the files that had made way their names back; one whose name is taken by now stays aside.

    Raises:
        OutcomeUnknownError: One made way time and again; nothing was deleted; try again.
    """
    if isinstance(work.store, FileTree):
        with step("move-back"):
            for file in _in_the_way(plan):
                work.fates.add(_move_back(work, work.store, file))


def _move_back(work: JobWork, tree: FileTree, file: RemovedFile) -> FileFate:
    aside = aside_key(work.folder, file)
    for _ in range(MOVE_BACK_TRIES):
        is_back = _give_name_back(tree, aside, file)
        if _close(work.store, aside):
            detail = "it has its name" if is_back else "another version has its name, or none"
            return FileFate(key=file.key, fate="kept", detail=f"{detail}; it does not lie aside")
    if is_back:
        raise OutcomeUnknownError(
            f"{work.store.url}/{file.key}: it got its name back {MOVE_BACK_TRIES} times and made way again; "
            f"it may lie at {aside}; nothing was deleted; run recovery again"
        )
    return FileFate(key=file.key, fate="kept", detail=f"something else has its name; it lies at {aside}")


def _give_name_back(tree: FileTree, aside: str, file: RemovedFile) -> bool:
    try:
        return tree.move_file(aside, file.key, file.version)
    except InvalidInputError:
        return False  # a folder of its name is a file by now


def _close(store: Store, aside: str) -> bool:
    """Let nothing make way to a key any more, unless a file lies there; tells whether it is closed."""
    with suppress(AlreadyExistsError, OutcomeUnknownError):
        create(store, aside, CLOSED)
    return _is_closed(store, aside)


def _is_closed(store: Store, aside: str) -> bool:
    try:
        return store.get(aside, length=len(CLOSED) + 1) == CLOSED
    except ObjectNotFoundError:
        return False


def _in_the_way(plan: Plan) -> Iterator[RemovedFile]:
    return (file for file in plan.all_removals() if file.in_the_way)
