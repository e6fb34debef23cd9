"""Paths, directories and their names."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    LockgateError,
)
from tests.support.files.file_world import FileWorld


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a.log", "does not begin with /"),
        ("/a/../b", r"the name '\.\.' is not allowed"),
        ("/a//b", "the name '' is not allowed"),
        ("/a/", "the name '' is not allowed"),
        ("/./a", r"the name '\.' is not allowed"),
        ("/a\nb", "cannot be printed"),
        ("/a\0b", "cannot be printed"),
        ("/\udc80", "cannot be printed"),
        ("/" + "x" * 256, "longer than 255 bytes"),
        ("/x" * 65, "it has 65 names"),
        ("/", "is the root"),
    ],
)
def test_a_bad_path_is_refused_and_nothing_is_changed(world: FileWorld, path: str, why: str) -> None:
    files = world.process()
    before = world.journal.status().stamp
    for call in (files.create, files.append, files.delete, files.make_directory, files.status):
        with pytest.raises(InvalidInputError, match=why):
            call(path)
    with pytest.raises(LockgateError):
        files.rename("/a", path)
    assert world.journal.status().stamp == before


def test_a_directory_is_not_moved_into_itself(world: FileWorld) -> None:
    files = world.process()
    files.make_directory("/a/b", parents=True)
    for target in ("/a", "/a/b/c"):
        with pytest.raises(ConflictError, match="itself or inside it"):
            files.rename("/a", target)
    files.make_directory("/c")
    with pytest.raises(AlreadyExistsError):
        files.rename("/a", "/c")
    world.write(files, "/c/file")
    with pytest.raises(ConflictError, match="/c/file is a file, not a directory"):
        files.create("/c/file/x")


def test_a_directory_is_listed_in_pages(world: FileWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.storage_core.files.namespace.queries.PAGE", 2)
    files = world.process()
    files.make_directory("/b")
    for name in "aced":
        world.write(files, f"/{name}", name.encode() * 3)

    first = files.list("/")
    rest = files.list("/", after=first[-1].name)
    assert [one.name for one in (*first, *rest)] == ["a", "b", "c", "d"]
    assert [one.is_directory for one in first] == [False, True]
