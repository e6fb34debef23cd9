"""A finished staging directory: its frozen listing, and the tasks into which workers share it out.

Source: commit protocol, "Writing and task commit": the staged front end.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from lockgate.storage_core.commit.records.job import ExpectedTask, StagedFile
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.ids import TaskId

TARGET_BYTES: Final = 256 * 1024 * 1024
MAX_FILES: Final = 200


def list_staged(staging_dir: str | Path, *, marker: str | None = "_SUCCESS") -> list[StagedFile]:
    """Freeze what a finished stage holds: every file that a reader would see, with its bytes, by path.

    Args:
        staging_dir: A directory on a disk that this process sees.
        marker: A file that its writer leaves when all is written (Spark: `_SUCCESS`); None: there is none.

    Raises:
        InvalidInputError: It is no directory, or holds something that is neither file nor directory.
        ConflictError: The marker is not there: the writer has not finished, or died.
    """
    root = Path(staging_dir)
    if not root.is_dir():
        raise InvalidInputError(
            f"staging directory {root} is not there; it must be on a disk that workers see"
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
                    f"staged {path} is no regular file; links and devices are not committed"
                )
            yield StagedFile((here / name).as_posix(), path.stat().st_size)


def group_into_tasks(
    files: Iterable[StagedFile], *, target_bytes: int = TARGET_BYTES, max_files: int = MAX_FILES
) -> tuple[ExpectedTask, ...]:
    """Share staged files out into tasks, the same files always into the same tasks.

    Args:
        files: A frozen listing; its order does not matter.
        target_bytes: A task ends before the file that would bring it over this; a larger file is alone.
        max_files: Greatest number of files in a task.

    Raises:
        InvalidInputError: A limit below 1.
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
    lines = "".join(f"{file.size} {file.path}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
