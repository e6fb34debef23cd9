"""All names below a directory, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from lockgate.storage_core.errors import PathNotDirectoryError, PathNotFoundError
from lockgate.storage_core.files.namespace.queries import FileStatus


class Walked(NamedTuple):
    """A name, and the directories that it is in below the first one."""

    path: str
    status: FileStatus
    above: tuple[Walked, ...]


def walk(
    list_page: Callable[[str, str | None], Sequence[FileStatus]], path: str, above: tuple[Walked, ...] = ()
) -> Iterator[Walked]:
    """Yield the names below a directory, a directory after what is in it; none if it was deleted meanwhile.

    Args:
        list_page: Lists a directory after a name, as `Files.list` does.
        above: Directories that it is in.
    """
    after: str | None = None
    with suppress(PathNotFoundError, PathNotDirectoryError):
        while page := list_page(path, after):
            for status in page:
                one = Walked(f"{path.rstrip('/')}/{status.name}", status, above)
                if status.is_directory:
                    yield from walk(list_page, one.path, (*above, one))
                yield one
            after = page[-1].name
