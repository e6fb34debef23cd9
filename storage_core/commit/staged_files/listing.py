"""List a finished staging directory, and group its files into tasks.

Source: commit protocol, "Writing and task commit": the staged front end.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.commit.records.task import ExpectedTask, StagedFile
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.ids import TaskId

TARGET_BYTES: Final = 256 * 1024 * 1024
MAX_FILES: Final = 200


def list_staged(staging_dir: str | Path, *, marker: str | None = "_SUCCESS") -> list[StagedFile]:
    """Return every visible file of a finished stage with its size, sorted by path.

    Args:
        staging_dir: Directory on a disk that this process sees.
        marker: File that the writer creates when it has finished (Spark: `_SUCCESS`); None to skip the check.

    Raises:
        InvalidInputError: The directory is missing, or has something that is neither file nor directory.
        ConflictError: The marker is missing: the writer has not finished, or died.
    """
    root = Path(staging_dir)
    if not root.is_dir():
        raise InvalidInputError(
            f"staging directory {root} does not exist; it must be on a disk that workers see"
        )
    if marker is not None and not (root / marker).is_file():
        raise ConflictError(
            f"staging directory {root} has no {marker}: its writer has not finished, or died; nothing of it "
            "was taken; write the stage again into a fresh directory"
        )
    return sorted(_files(root), key=lambda file: file.path)


def _files(root: Path) -> Iterator[StagedFile]:
    for folder, folders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if not is_hidden(name)]
        for name in [*names, *(link for link in folders if Path(folder, link).is_symlink())]:
            if is_hidden(name):
                continue
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file():
                raise InvalidInputError(
                    f"staged {path} is not a regular file; links and devices are not committed"
                )
            found = path.stat()
            yield StagedFile((here / name).as_posix(), found.st_size, found.st_mtime_ns)


def group_into_tasks(
    files: Iterable[StagedFile], *, target_bytes: int = TARGET_BYTES, max_files: int = MAX_FILES
) -> tuple[ExpectedTask, ...]:
    """Group staged files into tasks; the same files always give the same tasks.

    Args:
        files: Listing of the staged files, in any order.
        target_bytes: Maximum bytes in a task; a larger file gets its own task.
        max_files: Maximum number of files in a task.

    Raises:
        InvalidInputError: A limit is below 1.
    """
    if target_bytes < 1 or max_files < 1:
        raise InvalidInputError(
            f"group_into_tasks: target_bytes={target_bytes} and max_files={max_files} must be at least 1"
        )
    groups: list[list[StagedFile]] = []
    size = 0
    for file in sorted(files, key=lambda file: file.path):
        if not groups or len(groups[-1]) >= max_files or size + file.size > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return tuple(
        ExpectedTask(task_id=TaskId(f"staged-{number:05d}"), input_digest=_digest(group), files=tuple(group))
        for number, group in enumerate(groups)
    )


def _digest(files: Iterable[StagedFile]) -> str:
    # Another job attempt's task with this digest is taken for this one, so names and sizes are not enough.
    lines = "".join(f"{file.size} {file.modified_ns} {file.path}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
