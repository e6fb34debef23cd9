"""Operands of `lockgate files`: paths, patterns of names, targets, and the report of those that fail."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec
import typer

from lockgate.storage_core.cli.render import exit_code, print_error
from lockgate.storage_core.errors import LockgateError, PathNotDirectoryError, PathNotFoundError
from lockgate.storage_core.printable import printable

if TYPE_CHECKING:
    from lockgate.storage_core.files.files import Files
    from lockgate.storage_core.files.namespace.queries import FileStatus

T = TypeVar("T")
MAGIC: Final = re.compile(r"[*?\[]")


class Named(NamedTuple):
    """A file or directory that an operand names; `more` says that an open file may have more bytes."""

    path: str
    status: FileStatus
    more: str = ""


class Total(msgspec.Struct, frozen=True):
    """The directories and files at a path and below it, and their readable bytes."""

    path: str
    directories: int
    files: int
    length_bytes: int


class DirectorySizes(msgspec.Struct):
    """The files in a directory, without those in its directories, their bytes and their blocks."""

    directory: str
    files: int = 0
    length_bytes: int = 0
    blocks: int = 0

    def add(self, files: int, length_bytes: int, blocks: int) -> None:
        """Count more files."""
        self.files += files
        self.length_bytes += length_bytes
        self.blocks += blocks


@contextmanager
def reported(command: str) -> Iterator[None]:
    """End the command with the exit code of an error; that of a path has the words of `hdfs dfs`."""
    try:
        yield
    except (LockgateError, OSError) as error:
        if os.environ.get("LOCKGATE_DEBUG"):
            raise
        if isinstance(error, OSError):
            # The system's words for these two do not say what to do.
            is_known = error.filename and error.errno not in {errno.EXDEV, errno.EBUSY}
            text = f"`{error.filename}': {error.strerror}" if is_known else str(error)
            sys.stderr.write(f"{command}: {printable(text)}\n")
        else:
            print_error(error, as_json=False)
        raise typer.Exit(exit_code(error)) from None


def each(command: str, operands: Iterable[T], act: Callable[[T], object]) -> None:
    """Act on each operand, also after one that failed; end the command with the exit code of the last one."""
    code = 0
    for operand in operands:
        try:
            with reported(command):
                act(operand)
        except typer.Exit as ended:
            code = ended.exit_code
    if code:
        raise typer.Exit(code)


def each_named(command: str, files: Files, operands: Iterable[str], act: Callable[[Named], object]) -> None:
    """Act on all that the operands name, as `each` does."""
    each(command, operands, lambda operand: each(command, expand(files, operand), act))


def plain(operand: str) -> str:
    """Return a path without the `/` at its end."""
    return operand.rstrip("/") or "/"


def join(directory: str, name: str) -> str:
    """Return the path of a name in a directory."""
    return f"{directory.rstrip('/')}/{name}"


def find(files: Files, path: str) -> Named | None:
    """Return what a path names, None if it does not exist."""
    try:
        return Named(path, files.status(path))
    except (PathNotFoundError, PathNotDirectoryError):
        return None


def expand(files: Files, operand: str) -> Iterator[Named]:
    """Yield what a path or a pattern (`*`, `?`, `[...]`) names; a name that is spelt like that goes first.

    Raises:
        PathNotFoundError: There is nothing.
    """
    path = plain(operand)
    if not MAGIC.search(path):
        yield Named(path, files.status(path))
        return
    found = find(files, path)
    level = [found] if found else [Named("/", files.status("/"))]
    for name in () if found else path.split("/")[1:]:
        pattern = name.replace("[^", "[!")
        above = [named.path for named in level if named.status.is_directory]
        if MAGIC.search(name):
            listed = (child for directory in above for child in names_in(files, directory))
            level = [child for child in listed if fnmatchcase(child.status.name, pattern)]
        else:
            level = [child for directory in above if (child := find(files, join(directory, name)))]
    if not level:
        raise PathNotFoundError(f"{operand} matches no name; nothing was changed; check it", operand)
    yield from level


def names_in(files: Files, directory: str) -> Iterator[Named]:
    """Yield the names in a directory, in order."""
    page = files.list(directory)
    while page:
        yield from (Named(join(directory, one.name), one) for one in page)
        page = files.list(directory, after=page[-1].name)


def below(files: Files, directory: str) -> Iterator[Named]:
    """Yield all names below a directory, each directory before what is in it."""
    for named in names_in(files, directory):
        yield named
        if named.status.is_directory:
            yield from below(files, named.path)


def with_length(files: Files, named: Named) -> Named:
    """Return a file with the bytes that can be read now, also while it is written."""
    if not named.status.is_open:
        return named
    try:
        length = files.readable_bytes(named.path)
    except PathNotFoundError:
        length = None  # it was deleted meanwhile
    if length is None:
        return named._replace(more=" or more")
    return named._replace(status=msgspec.structs.replace(named.status, length_bytes=length))


def total(files: Files, named: Named) -> Total:
    """Count a file, or a directory with all that is below it."""
    directories = numbers = length = 0
    for one in (named, *below(files, named.path)) if named.status.is_directory else (named,):
        directories += one.status.is_directory
        numbers += not one.status.is_directory
        length += with_length(files, one).status.length_bytes
    return Total(named.path, directories, numbers, length)


def directory_sizes(files: Files, directory: str) -> Iterator[DirectorySizes]:
    """Yield a directory and all below it that have files; a directory is listed twice, and never kept."""
    sizes, has_directories = DirectorySizes(directory), False
    for named in names_in(files, directory):
        has_directories = has_directories or named.status.is_directory
        if not named.status.is_directory:
            sizes.add(1, named.status.length_bytes, named.status.blocks)
    if sizes.files:
        yield sizes
    for named in names_in(files, directory) if has_directories else ():
        if named.status.is_directory:
            yield from directory_sizes(files, named.path)


def place_in(files: Files, target: str, *, several: bool) -> Callable[[str], str]:
    """Return the function from a source's name to its new path: below the target if that is a directory.

    Raises:
        PathNotFoundError: The target is for several sources or ends with `/`, and does not exist.
        PathNotDirectoryError: It is a file.
    """
    path = plain(target)
    found = find(files, path)
    if found and found.status.is_directory:
        return lambda name: join(path, name)
    if several or target.endswith("/"):
        files.list(path)  # raises
    return lambda _name: path
