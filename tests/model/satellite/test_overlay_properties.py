"""The overlay is the union of both sides minus the whiteouts, whatever is called, moved and killed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    OtherJournalPathError,
)
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.rows import Block, File, Inode, Member
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.satellite.move import Move, cut_off
from tests.support.commit.destination import Crash
from tests.support.files.satellite_world import SatelliteWorld, at_each_step, tree
from tests.support.postgres import Server
from tests.support.soak import machine_settings

NAMES = st.sampled_from(["a", "b"])
PATHS = st.lists(NAMES, min_size=1, max_size=2).map(lambda names: "/m/" + "/".join(names)) | NAMES.map(
    "/{}".format
)
REFUSED = (AlreadyExistsError, ConflictError, InvalidInputError, ObjectNotFoundError)
STEPS = st.none() | st.integers(min_value=1, max_value=120)
"""The step before which the process dies; None: it lives."""


class Overlaid(RuleBasedStateMachine):
    """Two journals, and the paths that their tree must have: bytes of files, None for directories."""

    url: ClassVar = ""
    world: SatelliteWorld

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, bytes | None] = {"/m": None}
        self.is_mounted = False

    @initialize(
        old=st.dictionaries(PATHS, st.binary(max_size=6), min_size=2, max_size=6), mounts=st.booleans()
    )
    def open(self, old: dict[str, bytes], mounts: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.world = SatelliteWorld(Path(self.folder.name), self.url)
        self.reader = self.world.process()
        self.world.files.make_directory("/m")
        for path, data in sorted(old.items(), key=lambda one: -len(one[0])):
            above = path.rpartition("/")[0]
            if above and above not in self.model:
                self.make_directory(above)
            if self.has_place(path):
                self.create(path, data)
        if mounts:
            self.mount()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
            self.folder.cleanup()

    def has_place(self, path: str) -> bool:
        above = path.rpartition("/")[0]
        return path not in self.model and (not above or self.model.get(above, b"") is None)

    def below(self, path: str) -> list[str]:
        return [one for one in self.model if one.startswith(f"{path}/")]

    def changed(
        self, call: Callable[[], object], after: dict[str, bytes | None], dies_at: int | None
    ) -> None:
        """Make a change, which others see as a whole or not at all at each step, also after a crash."""
        before, steps = self.model, 0

        def look(name: str) -> None:
            nonlocal steps
            steps += 1
            if name.endswith("write.after"):  # nothing else changes what a reader sees
                assert tree(self.reader) in (before, after), name
            if steps == dies_at:
                raise Crash

        try:
            with at_each_step(look):
                call()
            self.model = after
        except Crash:
            self.world.restart()
            self.model = tree(self.world.files)
            assert self.model in (before, after)

    @precondition(lambda self: not self.is_mounted)
    @rule()
    def add(self) -> None:
        self.mount()

    def mount(self) -> None:
        self.world.mount("/m")
        self.is_mounted = True

    @rule(path=PATHS, data=st.binary(max_size=6))
    def create(self, path: str, data: bytes) -> None:
        if not self.has_place(path):
            self.refused(lambda: self.world.files.create(path))
            return
        with self.world.files.create(path) as writer:
            writer.write(data)
        self.model[path] = data

    @rule(path=PATHS, data=st.binary(max_size=6))
    def append(self, path: str, data: bytes) -> None:
        before = self.model.get(path)
        if before is None:
            self.refused(lambda: self.world.files.append(path))
            return
        with self.world.files.append(path) as writer:
            writer.write(data)
        self.model[path] = before + data

    @rule(path=PATHS, length=st.integers(min_value=-1, max_value=8))
    def truncate(self, path: str, length: int) -> None:
        before = self.model.get(path)
        if before is None or not 0 <= length <= len(before):
            self.refused(lambda: self.world.files.truncate(path, length))
            return
        self.world.files.truncate(path, length)
        self.model[path] = before[:length]

    @rule(path=PATHS)
    def make_directory(self, path: str) -> None:
        if self.has_place(path):
            self.world.files.make_directory(path)
            self.model[path] = None
        else:
            self.refused(lambda: self.world.files.make_directory(path))

    @rule(path=PATHS, to=PATHS, replace=st.booleans())
    def rename(self, path: str, to: str, replace: bool) -> None:
        is_inside = to == path or to.startswith(f"{path}/")
        is_replaced = replace and None not in {self.model.get(path), self.model.get(to)}
        if path not in self.model or is_inside or not (is_replaced or self.has_place(to)):
            self.refused(lambda: self.world.files.rename(path, to, replace=replace))
            return
        try:
            self.world.files.rename(path, to, replace=replace)
        except OtherJournalPathError:
            assert self.is_mounted
            return
        for one in (path, *self.below(path)):
            self.model[to + one.removeprefix(path)] = self.model.pop(one)

    @rule(path=PATHS, recursive=st.booleans(), dies_at=STEPS)
    def delete(self, path: str, recursive: bool, dies_at: int | None) -> None:
        inside = self.below(path)
        if path not in self.model or (inside and not recursive):
            self.refused(lambda: self.world.files.delete(path, recursive=recursive))
            return
        after = {one: data for one, data in self.model.items() if one not in (path, *inside)}
        self.changed(lambda: self.world.files.delete(path, recursive=recursive), after, dies_at)

    @precondition(lambda self: self.is_mounted)
    @rule(limit=st.none() | st.integers(min_value=1, max_value=3), dies_at=STEPS)
    def move(self, limit: int | None, dies_at: int | None) -> None:
        (mount,) = self.world.files.all_mounts()
        self.changed(lambda: Move(self.world.files, mount, limit=limit).run(), dict(self.model), dies_at)
        if limit is None and dies_at is None:
            assert not Files.list(self.world.files, "/m")
            cut_off(self.world.files, mount)

    @rule()
    def remove_deleted(self) -> None:
        self.world.files.remove_deleted()
        if self.is_mounted:
            return
        journal, volumes = self.world.files.journal, self.world.volumes[self.world.name]
        with journal.reading() as reading:
            rows = {kind: len(reading.where(kind, {})) for kind in (Inode, File, Block, Member, Lease)}
        files = [data for data in self.model.values() if data is not None]
        assert rows == {
            Inode: len(self.model), File: len(files), Block: rows[Block], Member: rows[Block], Lease: 0
        }  # fmt: skip
        assert [len(volume.blocks()) for volume in volumes.values()] == [rows[Block]]

    @invariant()
    def the_tree_has_these_paths(self) -> None:
        if hasattr(self, "world"):
            assert tree(self.world.files) == tree(self.reader) == self.model
            for path in ("/m/a", "/m/b", "/m/a/a", "/m/b/b"):
                if path not in self.model:
                    self.refused(lambda path=path: self.world.files.status(path))

    def refused(self, call: Callable[[], object]) -> None:
        before = self.world.files.journal.status().stamp
        with pytest.raises(REFUSED):
            call()
        assert self.is_mounted or self.world.files.journal.status().stamp == before


class Alone(Overlaid):
    """The tree of one journal, without a mount."""

    def mount(self) -> None:
        pass


def test_the_tree_is_the_union_of_both_sides_minus_what_is_hidden() -> None:
    run_state_machine_as_test(Overlaid, settings=machine_settings(3, 12))


def test_a_tree_is_as_in_the_model() -> None:
    run_state_machine_as_test(Alone, settings=machine_settings(5, 25))


@pytest.mark.requires("postgres")
@pytest.mark.parametrize("kind", [Overlaid, Alone])
@pytest.mark.soak
def test_a_tree_is_as_in_the_model_on_postgresql(postgres: Server, kind: type[Overlaid]) -> None:
    url = postgres.new_database(f"model_{kind.__name__.lower()}")
    machine = type("Machine", (kind,), {"url": url})
    run_state_machine_as_test(machine, settings=machine_settings(5, 25))
