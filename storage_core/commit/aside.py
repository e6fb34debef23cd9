"""Replaced files that make way for folders or files of their names, as Hadoop's merge has it (`file-v1`).

    DEST/a  ──decision──►  DEST/_lockgate/jobs/<job id>/aside/<digest of the key>  ──publication──►  gone
            ◄───────────────────────────────── revert ─────────────────────────────────

By rename, only the version that the plan saw, and as often as anyone likes.
"""

from __future__ import annotations

from collections.abc import Iterator

from storage_core.commit.codec import digest
from storage_core.commit.folder import JobFolder
from storage_core.commit.plan import Plan
from storage_core.commit.records import FileFate, RemovedFile
from storage_core.commit.work import JobWork
from storage_core.errors import InvalidInputError
from storage_core.failpoints import step
from storage_core.stores.file_tree import FileTree


def aside_key(folder: JobFolder, file: RemovedFile) -> str:
    """Key at which a file lies that has made way."""
    return folder.key(f"aside/{digest(file.key.encode())}")


def move_aside(work: JobWork, plan: Plan) -> None:
    """Let the plan's files that are in the way make way.

    One that changed since stays: the completion that it hinders then fails, and the job is reverted.
    """
    if isinstance(work.store, FileTree):
        with step("make-way"):
            for file in _in_the_way(plan):
                work.store.move_file(file.key, aside_key(work.folder, file), file.version)


def move_back(work: JobWork, plan: Plan) -> None:
    """Give the files that had made way their names back; one whose name is taken by now stays aside."""
    if isinstance(work.store, FileTree):
        with step("move-back"):
            for file in _in_the_way(plan):
                work.fates.add(_move_back(work, work.store, file))


def _move_back(work: JobWork, tree: FileTree, file: RemovedFile) -> FileFate:
    aside = aside_key(work.folder, file)
    try:
        is_back = tree.move_file(aside, file.key, file.version)
    except InvalidInputError:
        is_back = False
    if is_back:
        return FileFate(key=file.key, fate="kept", detail="it had made way, and has its name back")
    return FileFate(key=file.key, fate="kept", detail=f"something else has its name; it lies at {aside}")


def _in_the_way(plan: Plan) -> Iterator[RemovedFile]:
    return (file for file in plan.all_removals() if file.in_the_way)
