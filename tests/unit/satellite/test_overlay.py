"""Tests of the overlay: races with a mount and a move, a satellite that is down, borders, pages."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from lockgate.storage_core.errors import (
    ConflictError,
    DirectoryNotEmptyError,
    FencedError,
    InvalidInputError,
    JournalUnavailableError,
    LeaseHeldError,
    MountPointError,
    OtherJournalPathError,
    PathExistsError,
    PathNotFoundError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.mounts import Mount
from lockgate.storage_core.files.namespace.queries import PAGE, walk
from lockgate.storage_core.files.namespace.tree import MakeDirectory
from lockgate.storage_core.journal import Mutation
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.satellite.expired_files import apply_retention
from lockgate.storage_core.satellite.move import Move, add_mount, cut_off, status_of_mount
from lockgate.storage_core.satellite.open_overlay import refuse_other_identity
from lockgate.storage_core.satellite.overlay import Overlay
from lockgate.storage_core.stores import open_store
from tests.support.commit.destination import Crash
from tests.support.files.satellite_world import SatelliteWorld, tree

DAY_S = 86_400.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SatelliteWorld]:
    """Return a tree with /logs/old.log, which is not mounted yet."""
    world = SatelliteWorld(tmp_path)
    world.files.make_directory("/logs")
    put(world.files, "/logs/old.log", b"old")
    yield world
    world.close()


@pytest.fixture
def mounted(world: SatelliteWorld) -> SatelliteWorld:
    world.mount("/logs")
    return world


def put(files: Files, path: str, data: bytes = b"x") -> None:
    with files.create(path) as writer:
        writer.write(data)


def mount_of(files: Overlay) -> Mount:
    (mount,) = files.all_mounts()
    return mount


def once_at(point: str, call: Callable[[], object], nth: int = 1) -> None:
    """Call a function when a failpoint is passed for the n-th time."""
    left = nth

    def observe(name: str) -> None:
        nonlocal left
        left -= name == point
        if not left:
            FAILPOINTS.observer = None
            call()

    FAILPOINTS.observer = observe


def test_a_process_from_before_the_mount_makes_no_second_file_at_a_path(world: SatelliteWorld) -> None:
    early, late = world.process(), world.process()
    put(early, "/logs/first.log", b"first")
    world.mount("/logs")
    with pytest.raises(PathExistsError):
        late.create("/logs/first.log")
    put(late, "/logs/second.log", b"second")
    with pytest.raises(FileExistsError):
        early.create("/logs/second.log")
    put(early, "/logs/third.log")
    assert [one.name for one in Files.list(early, "/logs")] == ["first.log", "old.log"]
    early.delete("/logs/first.log")
    assert list(tree(late)) == ["/logs", "/logs/old.log", "/logs/second.log", "/logs/third.log"]


def test_a_process_from_before_the_mount_finds_what_only_the_satellite_has(world: SatelliteWorld) -> None:
    making, appending = world.process(), world.process()
    world.mount("/logs")
    world.files.make_directory("/logs/a")
    put(making, "/logs/a/new.log", b"new")
    with appending.append("/logs/a/new.log") as writer:
        writer.write(b"er")
    assert tree(world.files)["/logs/a/new.log"] == b"newer"


def test_a_mount_that_another_thread_reads_between_choice_and_entry_is_followed(
    world: SatelliteWorld,
) -> None:
    early = world.process()

    def mount() -> None:
        world.mount("/logs")
        early.all_mounts()

    once_at("idle.journal-write.before", mount)
    put(early, "/logs/new.log")
    assert [one.name for one in Files.list(early, "/logs")] == ["old.log"]
    assert tree(world.files)["/logs/new.log"] == b"x"


def test_an_append_to_an_old_file_stays_there_and_waits_for_no_mover(mounted: SatelliteWorld) -> None:
    with mounted.files.append("/logs/old.log") as writer:
        writer.write(b" and new")
    mounted.files.truncate("/logs/old.log", 7)
    assert mounted.files.status("/logs/old.log").journal == ""
    other = mounted.process()

    def append() -> None:
        with other.append("/logs/old.log") as writer:
            writer.write(b"!")

    once_at("satellite.copy.after", append)
    done = Move(mounted.files, mount_of(mounted.files)).run()
    assert (done.files, done.skipped, done.is_whole) == (0, 1, False)
    assert "was changed after it was copied" in done.problems[0]
    assert Move(mounted.files, mount_of(mounted.files)).run().files == 1
    append()
    assert tree(other)["/logs/old.log"] == b"old and!!"
    assert other.status("/logs/old.log").journal


def test_an_append_while_a_file_is_held_by_a_mover_is_refused_and_then_goes_to_the_satellite(
    mounted: SatelliteWorld,
) -> None:
    other, refused = mounted.process(), []

    def append() -> None:
        with pytest.raises(LeaseHeldError) as error:
            other.append("/logs/old.log")
        refused.append(error)

    once_at("satellite.hold.after", append)
    assert Move(mounted.files, mount_of(mounted.files)).run().files == 1
    assert refused
    other.append("/logs/old.log").close()


@pytest.mark.parametrize("path", ["/logs/a/old.log", "/logs/a"])
def test_what_is_deleted_while_it_is_copied_does_not_return(world: SatelliteWorld, path: str) -> None:
    world.files.make_directory("/logs/a")
    put(world.files, "/logs/a/old.log")
    world.mount("/logs")
    other = world.process()
    once_at("satellite.hold.after", lambda: other.delete(path, recursive=True))
    assert Move(world.files, mount_of(world.files)).run().is_whole
    left = {one: data for one, data in tree(other).items() if one.startswith("/logs/a")}
    assert left == ({} if path == "/logs/a" else {"/logs/a": None})
    assert status_of_mount(world.files, mount_of(world.files)).can_cut


def test_a_second_mover_is_refused_and_a_dead_one_followed(mounted: SatelliteWorld) -> None:
    other = mounted.process()
    mover = Move(mounted.files, mount_of(mounted.files))

    def second() -> None:
        with pytest.raises(LeaseHeldError, match="another mover"):
            Move(other, mount_of(other)).run()
        with pytest.raises(LeaseHeldError, match="another mover"):
            cut_off(other, mount_of(other))

    once_at("satellite.copy.after", second)
    assert mover.run().files == 1
    cut_off(other, mount_of(other))
    assert tree(other) == {"/logs": None, "/logs/old.log": b"old"}


def test_a_move_keeps_to_its_files_and_bytes_a_second(world: SatelliteWorld) -> None:
    for number in range(20):
        put(world.files, f"/logs/{number}.log", b"x" * 10)
    world.mount("/logs")
    began_s, moves = world.clock.now, []
    for limits in ({"limit": 10, "files_per_s": 5.0}, {"bytes_per_s": 10.0}):
        moves.append(Move(world.files, mount_of(world.files), **limits).run())
        began_s, took_s = world.clock.now, world.clock.now - began_s
        assert took_s == pytest.approx({10: 2.0, 11: 10.3}[moves[-1].files])
    assert [one.is_whole for one in moves] == [False, True]


@pytest.mark.parametrize("point", ["copy", "hold", "adopt", "old"])
def test_a_move_that_dies_at_a_step_is_ended_by_the_next_one(mounted: SatelliteWorld, point: str) -> None:
    def die() -> None:
        raise Crash

    once_at(f"satellite.{point}.after", die)
    with pytest.raises(Crash):
        Move(mounted.files, mount_of(mounted.files)).run()
    mounted.restart()
    assert tree(mounted.files) == {"/logs": None, "/logs/old.log": b"old"}
    done = Move(mounted.files, mount_of(mounted.files)).run()
    assert (done.files, done.skipped) == (0 if point in {"adopt", "old"} else 1, 0)
    assert status_of_mount(mounted.files, mount_of(mounted.files)).can_cut
    assert tree(mounted.files) == {"/logs": None, "/logs/old.log": b"old"}


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(
    "read",
    [
        lambda files: [one.name for one in files.list("/logs")],
        lambda files: [files.status("/logs/old.log").name],
        lambda files: [files.open("/logs/old.log").read() and "old.log"],
    ],
)
def test_a_file_that_moves_between_the_reads_of_the_two_sides_is_seen_once(
    mounted: SatelliteWorld, read: Callable[[Files], list[str]], nth: int
) -> None:
    other = mounted.process()
    once_at("idle.journal-read.after", lambda: Move(other, mount_of(other)).run(), nth)
    assert read(mounted.files) == ["old.log"]


def test_observers_that_are_behind_show_nothing_twice_and_nothing_that_was_deleted(
    mounted: SatelliteWorld,
) -> None:
    other = mounted.process(is_behind=True)
    assert tree(other) == {"/logs": None, "/logs/old.log": b"old"}
    Move(mounted.files, mount_of(mounted.files)).run()
    mounted.files.rename("/logs/old.log", "/logs/new.log")
    assert tree(other) == {"/logs": None, "/logs/new.log": b"old"}
    put(other, "/logs/old.log")
    cut_off(mounted.files, mount_of(mounted.files))
    other.journal.msync()
    mounted.files.delete("/logs/old.log")
    assert tree(other)["/logs/new.log"] == b"old"


def test_observers_of_a_cut_satellite_show_what_was_moved_before(mounted: SatelliteWorld) -> None:
    other = mounted.process(is_behind=True)
    assert list(tree(other)) == ["/logs", "/logs/old.log"]
    Move(mounted.files, mount_of(mounted.files)).run()
    cut_off(mounted.files, mount_of(mounted.files))
    other.journal.msync()
    assert list(tree(other)) == ["/logs", "/logs/old.log"]


def test_a_copy_that_a_dead_mover_makes_late_does_not_stop_the_next_one(
    mounted: SatelliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, dead = (
        mounted.files.satellite(mount_of(mounted.files)).files,
        Move(mounted.files, mount_of(mounted.files)),
    )
    (old,) = walk(partial(Files.list, mounted.files), "/logs")
    make = files.make_directory

    def make_and_copy(path: str, *, parents: bool = False) -> None:
        make(path, parents=parents)
        assert dead._copy(old) is True

    monkeypatch.setattr(files, "make_directory", make_and_copy)
    assert Move(mounted.files, mount_of(mounted.files)).run().files == 1


def test_renames_stay_in_one_journal(mounted: SatelliteWorld) -> None:
    files = mounted.files
    put(files, "/logs/new.log", b"new")
    files.rename("/logs/new.log", "/logs/newer.log")
    for path, target in (("/logs/newer.log", "/x.log"), ("/logs/old.log", "/logs/x.log")):
        with pytest.raises(OtherJournalPathError, match="copy it and delete it") as error:
            files.rename(path, target)
        assert error.value.errno == errno.EXDEV
    for call in (lambda: files.rename("/logs", "/x"), lambda: files.delete("/logs", recursive=True)):
        with pytest.raises(MountPointError) as busy:
            call()
        assert busy.value.errno == errno.EBUSY
    files.rename("/logs/newer.log", "/logs/old.log", replace=True)
    assert tree(files) == {"/logs": None, "/logs/old.log": b"new"}
    assert not Files.list(files, "/logs")


def test_leases_and_fences_of_files_stay_in_one_journal(world: SatelliteWorld) -> None:
    old, new = world.files, world.sides[0].files
    new.make_directory("/logs")
    put(new, "/logs/old.log", b"of the satellite")
    assert new.status("/logs/old.log").inode == Files.status(old, "/logs/old.log").inode
    with old.append("/logs/old.log") as writer:
        other = new.append("/logs/old.log")
        other.write(b"!")
        new.delete("/logs/old.log")
        with pytest.raises(FencedError):
            other.close()
        writer.write(b" and new")
    assert Files.open(old, "/logs/old.log").read() == b"old and new"


def test_pages_of_both_sides_are_in_one_order_and_whole(world: SatelliteWorld) -> None:
    names = [f"{number:04d}" for number in range(3 * PAGE)]
    make = [Mutation(op=MakeDirectory(path=f"/logs/{name}")) for name in names[::2]]
    world.files.journal.write(make)
    world.mount("/logs")
    side = world.files.satellite(mount_of(world.files))
    side.journal.write([Mutation(op=MakeDirectory(path=f"/logs/{name}")) for name in names[1::2]])
    once_at("satellite.whiteout.after", lambda: pytest.fail("a crash"))
    with pytest.raises(pytest.fail.Exception):
        world.files.delete(f"/logs/{names[2]}")
    found: list[str] = []
    while page := world.files.list("/logs", found[-1] if found else None):
        found += (one.name for one in page)
    assert found == [name for name in names if name != names[2]] + ["old.log"]
    with pytest.raises(PathNotFoundError):
        world.files.status(f"/logs/{names[2]}")
    world.files.make_directory(f"/logs/{names[2]}")
    world.files.remove_deleted()
    assert world.files.status(f"/logs/{names[2]}").journal
    assert f"/logs/{names[2]}" not in {f"/logs/{one.name}" for one in Files.list(world.files, "/logs")}


def test_a_directory_of_both_sides_is_deleted_only_if_both_are_empty(world: SatelliteWorld) -> None:
    world.files.make_directory("/logs/a")
    put(world.files, "/logs/a/old.log")
    world.mount("/logs")
    put(world.files, "/logs/a/new.log")
    for path in ("/logs/a/old.log", "/logs/a/new.log"):
        with pytest.raises(DirectoryNotEmptyError):
            world.files.delete("/logs/a")
        world.files.delete(path)
    world.files.delete("/logs/a")
    with pytest.raises(PathNotFoundError):
        world.files.create("/logs/a/x.log")


def test_old_files_are_read_while_the_satellite_is_down(
    mounted: SatelliteWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = mounted.files

    def down(_: object) -> None:
        raise JournalUnavailableError("no answer")

    with caplog.at_level(logging.WARNING, "lockgate.satellite"):
        monkeypatch.setattr(files, "satellite", down)
        assert tree(files) == {"/logs": None, "/logs/old.log": b"old"}
        for call in (lambda: files.create("/logs/new.log"), lambda: files.delete("/logs/old.log")):
            with pytest.raises(JournalUnavailableError, match="no answer"):
                call()
        assert status_of_mount(files, mount_of(files)).why_down == "no answer"
        monkeypatch.setattr(files, "settings", replace(files.settings, satellite_fallback=True))
        mounted.clock.now += 1
        put(files, "/logs/new.log", b"new")
    assert "only old files are read" in caplog.messages[0]
    assert "is made in the default journal" in caplog.messages[-1]
    assert len(caplog.messages) == 2
    monkeypatch.undo()
    assert tree(files)["/logs/new.log"] == b"new"
    assert status_of_mount(files, mount_of(files)).made_since == 1
    assert Move(files, mount_of(files)).run().files == 2


def test_the_end_of_a_deletion_that_died_leaves_what_the_fallback_made_later(
    world: SatelliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_: object) -> None:
        raise JournalUnavailableError("no answer")

    def put_while_down(path: str) -> None:
        world.clock.now += 1
        with monkeypatch.context() as patch:
            patch.setattr(world.files, "satellite", down)
            patch.setattr(world.files, "settings", replace(world.settings, satellite_fallback=True))
            put(world.files, path)
        world.clock.now += 1

    def die() -> None:
        raise Crash

    late = world.process(is_behind=True)
    world.files.make_directory("/logs/a")
    put(world.files, "/logs/a/old.log")
    world.mount("/logs")
    put_while_down("/logs/a/b/earlier.log")
    put(world.files, "/logs/a/new.log")
    once_at("satellite.whiteout.after", die)
    with pytest.raises(Crash):
        world.files.delete("/logs/a", recursive=True)
    world.restart()
    put_while_down("/logs/a/c/later.log")
    assert list(tree(world.files)) == ["/logs", "/logs/old.log"]
    late.finish_all(late.satellite(mount_of(world.files)))
    assert list(tree(world.files)) == [
        "/logs",
        "/logs/a",
        "/logs/old.log",
        "/logs/a/c",
        "/logs/a/c/later.log",
    ]
    assert Move(world.files, mount_of(world.files)).run().files == 2
    assert status_of_mount(world.files, mount_of(world.files)).can_cut


@pytest.mark.parametrize("point", ["idle.journal-read.after", "idle.journal-write.before"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_file_that_is_made_beside_a_recursive_deletion_is_refused_or_whole(
    world: SatelliteWorld, point: str, nth: int
) -> None:
    world.files.make_directory("/logs/a")
    put(world.files, "/logs/a/old.log")
    world.mount("/logs")
    other, found = world.process(), {"/logs": None, "/logs/old.log": b"old"}
    once_at(point, lambda: other.delete("/logs/a", recursive=True), nth)
    with suppress(PathNotFoundError, FencedError):
        put(world.files, "/logs/a/new.log", b"new")
        found |= {"/logs/a": None, "/logs/a/new.log": b"new"}
    assert FAILPOINTS.observer is None
    assert tree(other) == tree(world.files) == found
    assert "a" not in {one.name for one in Files.list(world.files, "/logs")}


def test_mounts_that_overlap_and_other_journals_are_refused(mounted: SatelliteWorld, tmp_path: Path) -> None:
    mount = mount_of(mounted.files)
    for prefix in ("/logs/a", "/logs"):
        with pytest.raises(ConflictError, match="overlaps with /logs of satellite logs"):
            mounted.mount(prefix) if prefix != "/logs" else add_mount(
                mounted.files, Mount(prefix="/logs", satellite="x", journal="y", identity="z", added_s=0)
            )
    assert mounted.files.all_mounts() == (mount,)
    stranger = SatelliteWorld(tmp_path / "stranger")
    stranger.files.satellite = mounted.files.satellite
    with pytest.raises(ConflictError, match="is a satellite of another journal"):
        stranger.mount("/logs")
    stranger.close()
    with pytest.raises(InvalidInputError, match="is another one"):
        refuse_other_identity(mount, "of another deployment")


def test_retention_empties_the_old_side_by_pattern_and_age(world: SatelliteWorld) -> None:
    world.files.make_directory("/logs/a")
    put(world.files, "/logs/a/b.txt")
    put(world.files, "/logs/a/c.log", b"log")
    world.mount("/logs")
    Move(world.files, mount_of(world.files), limit=1).run()
    world.clock.now += 2 * DAY_S
    put(world.files, "/logs/young.log")
    named: list[str] = []
    done = apply_retention(world.files, {"/logs/*/*.log": 1}, note=named.append)
    assert (named, done.files, done.size_bytes) == (["/logs/a/c.log"], 1, 3)
    assert len(tree(world.files)) == 6
    done = apply_retention(world.files, {"/logs/**": 1}, dry_run=False, note=named.append)
    assert (done.files, done.directories) == (3, 1)
    assert tree(world.files) == {"/logs": None, "/logs/young.log": b"x"}
    assert status_of_mount(world.files, mount_of(world.files)).can_cut
    for wrong in ({"/**": 1.0}, {"logs/**": 1.0}, {"/logs": 1.0}, {"/logs/**": 0.0}):
        with pytest.raises(InvalidInputError, match="retention of"):
            apply_retention(world.files, wrong, dry_run=False)


def test_both_journals_are_as_their_entries_say(mounted: SatelliteWorld, tmp_path: Path) -> None:
    put(mounted.files, "/logs/a.log")
    Move(mounted.files, mount_of(mounted.files)).run()
    mounted.files.delete("/logs/old.log")
    cut_off(mounted.files, mount_of(mounted.files))
    from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints

    for journal in (mounted.files.journal, mounted.sides[0].journal):
        with journal.reading() as reading:
            kept = Checkpoints(open_store(str(tmp_path / journal.name)), journal.name)
            assert not verify(reading, kept, lambda *_: None).findings
