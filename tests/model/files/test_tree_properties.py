"""The tree of files behaves as a dictionary of paths, whatever the order of calls."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
)
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.rows import Block, File, Inode, Member
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import ManualClock
from tests.support.files.faulty_volumes import FaultyDirectory
from tests.support.postgres import Server
from tests.support.soak import machine_settings

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
EXAMPLES = count()
REFUSED = (AlreadyExistsError, ConflictError, InvalidInputError, ObjectNotFoundError)


class Tree(RuleBasedStateMachine):
    """A tree, and the paths that it must have: bytes of files, None for directories."""

    url: ClassVar = ""
    """Database of the journals of all examples; by default each has its own."""
    journal: Journal
    files: Files

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, bytes | None] = {}

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        url = self.url or f"sqlite:///{Path(self.folder.name) / 'journal.db'}"
        self.journal = open_journal(url, f"example-{next(EXAMPLES)}", clock=ManualClock())
        self.volumes = {VolumeId(name): FaultyDirectory(Path(self.folder.name, name), name) for name in "xy"}
        self.files = Files(self.journal, self.volumes, load_settings(), block_bytes=4)

    def teardown(self) -> None:
        if hasattr(self, "files"):
            self.files.close()
            self.journal.close()
            self.folder.cleanup()

    def has_place(self, path: str) -> bool:
        """Return whether a path is free, and the directory that it is in exists."""
        above = path.rpartition("/")[0]
        return path not in self.model and (not above or self.model.get(above, b"") is None)

    def below(self, path: str) -> list[str]:
        return [one for one in self.model if one.startswith(f"{path}/")]

    @rule(path=PATHS, data=st.binary(max_size=10))
    def create(self, path: str, data: bytes) -> None:
        if self.has_place(path):
            with self.files.create(path) as writer:
                writer.write(data)
            self.model[path] = data
        else:
            self.refused(lambda: self.files.create(path))

    @rule(path=PATHS, data=st.binary(max_size=10))
    def append(self, path: str, data: bytes) -> None:
        before = self.model.get(path)
        if before is None:
            self.refused(lambda: self.files.append(path))
            return
        with self.files.append(path) as writer:
            writer.write(data)
        self.model[path] = before + data

    @rule(path=PATHS, length=st.integers(min_value=-1, max_value=12))
    def truncate(self, path: str, length: int) -> None:
        before = self.model.get(path)
        if before is None or not 0 <= length <= len(before):
            self.refused(lambda: self.files.truncate(path, length))
            return
        self.files.truncate(path, length)
        self.model[path] = before[:length]

    @rule(path=PATHS)
    def make_directory(self, path: str) -> None:
        if self.has_place(path):
            self.files.make_directory(path)
            self.model[path] = None
        else:
            self.refused(lambda: self.files.make_directory(path))

    @rule(path=PATHS, to=PATHS, replace=st.booleans())
    def rename(self, path: str, to: str, replace: bool) -> None:
        is_inside = to == path or to.startswith(f"{path}/")
        is_replaced = replace and None not in {self.model.get(path), self.model.get(to)}
        if path not in self.model or is_inside or not (is_replaced or self.has_place(to)):
            self.refused(lambda: self.files.rename(path, to, replace=replace))
            return
        self.files.rename(path, to, replace=replace)
        for one in (path, *self.below(path)):
            self.model[to + one.removeprefix(path)] = self.model.pop(one)

    @rule(path=PATHS, recursive=st.booleans())
    def delete(self, path: str, recursive: bool) -> None:
        inside = self.below(path)
        if path not in self.model or (inside and not recursive):
            self.refused(lambda: self.files.delete(path, recursive=recursive))
            return
        self.files.delete(path, recursive=recursive)
        for one in (path, *inside):
            del self.model[one]

    @rule()
    def remove_deleted(self) -> None:
        self.files.remove_deleted()
        with self.journal.reading() as reading:
            rows = {kind: len(reading.where(kind, {})) for kind in (Inode, File, Block, Member, Lease)}
        files = [data for data in self.model.values() if data is not None]
        assert rows[Inode] == len(self.model)
        assert rows[File] == len(files)
        assert rows[Member] == 2 * rows[Block]
        assert rows[Lease] == 0
        for volume in self.volumes.values():
            assert len(volume.blocks()) == rows[Block]

    @invariant()
    def the_tree_has_these_paths(self) -> None:
        if not hasattr(self, "files"):
            return
        found: dict[str, bytes | None] = {}
        waiting = ["/"]
        while waiting:
            at = waiting.pop()
            for one in self.files.list(at):
                path = f"{at.rstrip('/')}/{one.name}"
                if one.is_directory:
                    found[path] = None
                    waiting.append(path)
                else:
                    found[path] = self.files.open(path).read()
                    assert one.length_bytes == len(found[path] or b"")
        assert found == self.model

    def refused(self, call: object) -> None:
        before = self.journal.status().stamp
        assert callable(call)
        try:
            call()
        except REFUSED:
            assert self.journal.status().stamp == before
        else:
            raise AssertionError("the call was not refused")


TestTreeProperties = Tree.TestCase
TestTreeProperties.settings = machine_settings(20, 25)


@pytest.mark.requires("postgres")
@pytest.mark.soak
def test_a_tree_is_as_in_the_model_on_postgresql(postgres: Server) -> None:
    machine = type("Machine", (Tree,), {"url": postgres.new_database("model_tree")})
    run_state_machine_as_test(machine, settings=machine_settings(5, 25))
