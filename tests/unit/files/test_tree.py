"""Paths, directories and their names."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable

import pytest

from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.files.files import Files
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


def test_the_root_is_a_directory_that_is_not_changed(world: FileWorld) -> None:
    files = world.process()
    assert files.status("/").is_directory
    for call in (files.create, files.append, files.delete, files.make_directory):
        with pytest.raises(InvalidInputError, match="is the root"):
            call("/")


@pytest.mark.parametrize(
    ("call", "kind", "number", "about"),
    [
        (lambda files: files.open("/none/a"), FileNotFoundError, errno.ENOENT, "/none"),
        (lambda files: files.append("/d/none"), FileNotFoundError, errno.ENOENT, "/d/none"),
        (lambda files: files.create("/d/a"), FileExistsError, errno.EEXIST, "/d/a"),
        (lambda files: files.rename("/d/a", "/d"), FileExistsError, errno.EEXIST, "/d"),
        (lambda files: files.rename("/e", "/d/a", replace=True), FileExistsError, errno.EEXIST, "/d/a"),
        (lambda files: files.rename("/d/a", "/e", replace=True), FileExistsError, errno.EEXIST, "/e"),
        (lambda files: files.open("/"), IsADirectoryError, errno.EISDIR, "/"),
        (lambda files: files.append("/d"), IsADirectoryError, errno.EISDIR, "/d"),
        (lambda files: files.status("/d/a/b"), NotADirectoryError, errno.ENOTDIR, "/d/a"),
        (lambda files: files.delete("/d"), OSError, errno.ENOTEMPTY, "/d"),
        (lambda files: files.rename("/d", "/d/d"), OSError, errno.EINVAL, "/d"),
    ],
)
def test_an_error_of_a_path_is_one_of_a_local_file_too(
    world: FileWorld, call: Callable[[Files], object], kind: type[OSError], number: int, about: str
) -> None:
    files = world.process()
    files.make_directory("/d")
    files.make_directory("/e")
    world.write(files, "/d/a")
    with pytest.raises(kind) as raised:
        call(files)
    copied = pickle.loads(pickle.dumps(raised.value))
    for error in (raised.value, copied):
        assert isinstance(error, LockgateError)
        assert (error.errno, error.filename, error.strerror) == (number, about, os.strerror(number))
        assert "nothing was changed" in str(error)
