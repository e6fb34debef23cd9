"""Temporary folders of Spark tasks: one that a killed task left is deleted by the next task."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from lockgate.storage_core.file_locks import wait_for

PREFIX: Final = "lockgate-spark-"
LEAST_AGE_S: Final = 60.0
"""A younger folder may be one that its task has not locked yet."""


@contextmanager
def answer_folder() -> Iterator[Path]:
    """Yield a temporary folder, locked until the block ends; delete those whose tasks were killed."""
    delete_abandoned()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, _opened(Path(name)) as folder:
        wait_for(Path(name)).until_locked(folder, fcntl.LOCK_SH)
        yield Path(name)


def delete_abandoned() -> None:
    """Delete folders of this user that no process has locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Another task may delete it meanwhile; a file of another user, or a link, cannot be opened.
        with suppress(OSError), _opened(path) as folder:
            status = os.fstat(folder)
            if status.st_uid != os.getuid() or abs(time.time() - status.st_mtime) < LEAST_AGE_S:
                continue
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)
