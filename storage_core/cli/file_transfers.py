"""Copies between local files, the standard streams and appendable files."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockgate.storage_core.cli.file_operands import Named, find, join, names_in
from lockgate.storage_core.cli.render import standard_output
from lockgate.storage_core.errors import (
    LockgateError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotFoundError,
)

if TYPE_CHECKING:
    from lockgate.storage_core.concurrency import Progress
    from lockgate.storage_core.files.files import Files
    from lockgate.storage_core.files.reader import Reader
    from lockgate.storage_core.files.writing.writer import FileWriter

READ_BYTES: Final = 1024 * 1024
COPYING: Final = "._COPYING_"
"""End of the name of a file that is being copied, as in HDFS."""


def appending(files: Files, path: str) -> FileWriter:
    """Return a writer at the end of a file, which is made with its directories if there is none."""
    from lockgate.storage_core.files.namespace.tree_paths import parse_path

    try:
        return files.append(path)
    except PathNotFoundError:
        parse_path(path)  # before its directories are made
        files.make_directory(path.rpartition("/")[0] or "/", parents=True)
        return files.create(path)


def open_source(source: str) -> FileIO:
    """Open a local file or standard input; a read returns what is there now."""
    return FileIO(sys.stdin.fileno(), closefd=False) if source == "-" else FileIO(source)


def put_file(files: Files, source: str, target: str, force: bool, progress: Progress) -> None:
    """Copy a local file or directory to a path; a file has its name once it is complete."""
    found = find(files, target)
    if source != "-" and Path(source).is_dir():
        if found is None or not found.status.is_directory:
            files.make_directory(target)
        for child in sorted(Path(source).iterdir()):
            put_file(files, str(child), join(target, child.name), force, progress)
        return
    if found and found.status.is_directory:
        raise PathIsDirectoryError(f"{target}: nothing was changed; name a file", target)
    if found and not force:
        raise PathExistsError(f"{target}: nothing was changed; add -f", target)
    copying = target + COPYING
    with open_source(source) as file:
        if find(files, copying):
            files.delete(copying)  # of a command that was killed
        try:
            with files.create(copying) as writer:
                _transfer(file.read, writer.write, source, os.fstat(file.fileno()).st_size, progress)
            files.rename(copying, target, replace=force)
        except BaseException:
            with suppress(LockgateError):
                files.delete(copying)
            raise


def get_file(files: Files, named: Named, target: Path, force: bool, progress: Progress) -> None:
    """Copy a file or directory to a local one; a file has its name once it is complete."""
    if named.status.is_directory:
        target.mkdir(exist_ok=True)
        for child in names_in(files, named.path):
            get_file(files, child, target / child.status.name, force, progress)
        return
    if target.exists() and not force:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    copying = target.with_name(target.name + COPYING)
    try:
        with files.open(named.path) as reader, copying.open("wb") as file:
            _transfer(reader.read, file.write, named.path, named.status.length_bytes, progress)
        copying.replace(target)
    except BaseException:
        copying.unlink(missing_ok=True)
        raise


def _transfer(
    read: Callable[[int], bytes], write: Callable[[bytes], int], name: str, size: int, progress: Progress
) -> None:
    done = 0
    while data := read(READ_BYTES):
        write(data)
        progress(name, done := done + len(data), size)


def print_bytes(files: Files, named: Named) -> None:
    """Write the bytes of a file to standard output."""
    with files.open(named.path) as reader:
        print_rest(reader)


def print_rest(reader: Reader) -> None:
    """Write what a reader has not read to standard output."""
    while data := reader.read(READ_BYTES):
        with standard_output():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
