"""Files in a journal and on real volumes: create, append, truncate, rename, delete, recover, remove."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    FencedError,
    InvalidInputError,
    LeaseHeldError,
    LockgateError,
    ObjectNotFoundError,
    SafeModeError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.file_blocks import AddBlock
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks
from lockgate.storage_core.files.namespace.open_files import OpenFile
from lockgate.storage_core.files.namespace.removals import RemoveBlocks
from lockgate.storage_core.files.namespace.rows import Block, File, Inode, Member
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import ReplicaState, Volume, VolumeId
from lockgate.storage_core.files.volumes.server.app import volume_app
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Journal, Mutation, Refused, Stamp
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.settings import Settings
from tests.support.blobs.http_server import serving
from tests.support.commit.destination import Crash, ManualClock
from tests.support.files.volume_server import remote_volume
from tests.support.journal.checkpoints import JournalWorld

TEXT = b"abcdefghij" * 2


class FileWorld:
    """A journal, three volumes, and processes that use them.

    With a journal on PostgreSQL the volumes are those of a volume server, as on several machines.
    """

    def __init__(self, journals: JournalWorld, root: Path) -> None:
        self.journals = journals
        self.clock: ManualClock = journals.clock
        self.journal: Journal = journals.open()
        self.folders = [root / f"volume-{number}" for number in range(3)]
        self.volumes: dict[VolumeId, Volume] = {}
        self.opened: dict[VolumeId, LocalVolume] = {}
        self.stack = ExitStack()
        self.url = (
            self.stack.enter_context(serving(volume_app(self.opened)))
            if journals.url.startswith("postgresql")
            else ""
        )
        self.start_volumes()

    def start_volumes(self) -> None:
        self.opened.update({volume.id: volume for volume in map(LocalVolume, self.folders)})
        for name, volume in self.opened.items():
            self.volumes[name] = (
                self.stack.enter_context(remote_volume(name, self.url)) if self.url else volume
            )

    def restart_volumes(self) -> None:
        self.stop_volumes()
        self.start_volumes()

    def stop_volumes(self) -> None:
        while self.opened:
            self.opened.popitem()[1].close()

    def close(self) -> None:
        self.stop_volumes()
        self.stack.close()

    def process(self, *, block_bytes: int = 8) -> Files:
        return Files(self.journal, self.volumes, Settings(), block_bytes=block_bytes)

    def write(self, files: Files, path: str, data: bytes = TEXT) -> None:
        with files.create(path) as writer:
            writer.write(data)

    def lapse(self, files: Files) -> None:
        """Let the leases of ended processes lapse, as one process sees it."""
        for path in [name.name for name in files.list("/") if name.is_open]:
            assert files.recovery.lapses_in_s(files.status(f"/{path}").inode) > 0
        self.clock.sleep(200)

    def rows(self, kind: type) -> list[object]:
        with self.journal.reading() as reading:
            return list(reading.where(kind, {}))


@pytest.fixture
def world(journals: JournalWorld, tmp_path: Path) -> Iterator[FileWorld]:
    world = FileWorld(journals, tmp_path)
    yield world
    FAILPOINTS.observer = None
    world.close()
    world.journal.close()


def test_a_file_of_several_blocks_is_read_back(world: FileWorld) -> None:
    files = world.process()
    world.write(files, "/a.log")

    assert files.open("/a.log").read() == TEXT
    status = files.status("/a.log")
    assert (status.length_bytes, status.blocks, status.is_open) == (20, 3, False)
    assert world.rows(Lease) == []


def test_flushed_bytes_are_read_by_another_process_before_the_file_is_closed(world: FileWorld) -> None:
    writer = world.process().create("/a.log")
    writer.write(b"one")
    writer.flush()
    reader = world.process().open("/a.log")

    assert reader.read() == b"one"
    writer.write(b"two")
    writer.flush()
    assert reader.read() == b"two"
    writer.close()


def test_a_flush_writes_no_entry_unless_a_block_was_added(world: FileWorld) -> None:
    writer = world.process(block_bytes=100).create("/a.log")
    writer.write(b"one")
    writer.flush()
    before = world.journal.status().stamp
    for _ in range(5):
        writer.write(b"more")
        writer.flush()

    assert world.journal.status().stamp == before
    writer.close()


def test_a_file_is_appended_to_after_a_restart_of_all_volumes(world: FileWorld) -> None:
    world.write(world.process(), "/a.log", b"one")
    world.restart_volumes()
    with world.process().append("/a.log") as writer:
        writer.write(b"two")

    assert world.process().open("/a.log").read() == b"onetwo"


def test_a_file_has_one_writer(world: FileWorld) -> None:
    writer = world.process().create("/a.log")

    with pytest.raises(LeaseHeldError):
        world.process().append("/a.log")
    with pytest.raises(LeaseHeldError):
        world.process().truncate("/a.log", 0)
    with pytest.raises(AlreadyExistsError, match=r"/a\.log is a file already"):
        world.process().create("/a.log")
    writer.close()


def test_a_file_whose_writer_ended_is_recovered_with_all_flushed_bytes(world: FileWorld) -> None:
    ended = world.process()
    writer = ended.create("/a.log")
    writer.write(TEXT)
    writer.flush()
    ended.close()
    files = world.process()
    with pytest.raises(LeaseHeldError, match="lapses in"):
        files.recover("/a.log")
    world.lapse(files)

    (found,) = files.recovery.recover_lapsed()
    assert (found.path, found.length_bytes, found.why_not) == ("/a.log", 20, "")
    assert files.open("/a.log").read() == TEXT
    assert files.recover("/a.log") is None
    assert not files.status("/a.log").is_open
    writer.write(b"late")
    with pytest.raises(FencedError):
        writer.flush()


def test_an_append_recovers_a_file_whose_lease_has_lapsed(world: FileWorld) -> None:
    ended = world.process()
    writer = ended.create("/a.log")
    writer.write(b"one")
    writer.flush()
    ended.close()
    files = world.process()
    world.lapse(files)
    with files.append("/a.log") as again:
        again.write(b"two")

    assert files.open("/a.log").read() == b"onetwo"


def test_a_file_is_not_recovered_while_its_members_do_not_answer(world: FileWorld) -> None:
    ended = world.process()
    writer = ended.create("/a.log")
    writer.write(b"one")
    writer.flush()
    ended.close()
    files = world.process()
    world.lapse(files)
    reached = dict(world.volumes)
    world.volumes.clear()
    (found,) = files.recovery.recover_lapsed()
    assert found.length_bytes is None
    assert "nothing was committed" in found.why_not
    world.volumes.update(reached)

    (found,) = world.process().recovery.recover_lapsed()
    assert found.length_bytes == 3  # at once: the recovery that failed gave its lease back


@pytest.mark.parametrize("length", range(21))
def test_a_truncate_at_every_byte_of_three_blocks(world: FileWorld, length: int) -> None:
    files = world.process()
    world.write(files, "/a.log")
    files.truncate("/a.log", length)
    files.truncate("/a.log", length)

    assert files.open("/a.log").read() == TEXT[:length]
    assert files.status("/a.log").length_bytes == length
    with files.append("/a.log") as writer:
        writer.write(b"-end")
    assert files.open("/a.log").read() == TEXT[:length] + b"-end"
    assert files.remove_deleted().blocks == len([start for start in (8, 16) if length <= start])


@pytest.mark.parametrize("length", [0, 5, 8, 12, 16, 19])
def test_a_truncate_that_dies_at_any_step_leaves_the_old_length_or_the_new(
    world: FileWorld, length: int
) -> None:
    for die_at in itertools.count():
        path = f"/{die_at}.log"
        world.write(world.process(), path)
        dying, steps = world.process(), itertools.count()

        def die(point: str, die_at: int = die_at, steps: Iterator[int] = steps) -> None:
            if next(steps) == die_at:
                raise Crash(point)

        FAILPOINTS.observer = die
        try:
            dying.truncate(path, length)
        except Crash:
            FAILPOINTS.observer = None
        else:
            FAILPOINTS.observer = None
            assert die_at > 8
            return
        finally:
            FAILPOINTS.observer = None
            dying.close()
        files = world.process()
        if files.status(path).is_open:
            world.lapse(files)
            assert [found.why_not for found in files.recovery.recover_lapsed()] == [""]
        assert files.open(path).read() in {TEXT, TEXT[:length]}
        files.truncate(path, length)
        assert files.open(path).read() == TEXT[:length]


@pytest.mark.parametrize("length", [-1, 21, 10**12])
def test_a_length_outside_the_file_is_refused_and_nothing_is_changed(world: FileWorld, length: int) -> None:
    files = world.process()
    world.write(files, "/a.log")
    before = world.journal.status().stamp

    with pytest.raises(InvalidInputError, match="give a length from 0 to 20"):
        files.truncate("/a.log", length)
    assert world.journal.status().stamp == before


def test_an_open_file_that_is_renamed_keeps_its_writer(world: FileWorld) -> None:
    files = world.process()
    files.make_directory("/old/deep", parents=True)
    files.make_directory("/old/deep", parents=True)
    writer = files.create("/old/deep/a.log")
    writer.write(b"one")
    before = world.journal.status().stamp.sequence
    files.rename("/old", "/new")

    assert world.journal.status().stamp.sequence == before + 1
    writer.write(b"two")
    writer.close()
    assert files.open("/new/deep/a.log").read() == b"onetwo"
    with pytest.raises(ObjectNotFoundError, match="the directory /old does not exist"):
        files.status("/old/deep/a.log")


def test_the_writer_of_a_deleted_file_is_fenced_and_nothing_of_it_remains(world: FileWorld) -> None:
    files = world.process()
    writer = files.create("/a.log")
    writer.write(b"one")
    writer.flush()
    world.process().delete("/a.log")

    writer.write(b"two")
    with pytest.raises(FencedError):
        writer.flush()
    with pytest.raises(FencedError):
        writer.close()
    assert files.remove_deleted(dry_run=True).blocks == 1
    removed = files.remove_deleted()
    assert (removed.files, removed.blocks, removed.kept_blocks) == (1, 1, 0)
    assert [world.rows(kind) for kind in (Inode, File, Block, Member, Lease)] == [[], [], [], [], []]
    assert not [path for folder in world.folders for path in folder.glob("*.log")]


def test_the_writer_of_a_deleted_file_is_fenced_by_its_renewal_if_no_member_is_reached(
    world: FileWorld,
) -> None:
    files = world.process(block_bytes=100)
    writer = files.create("/a.log")
    writer.write(b"one")
    writer.flush()
    Files(world.journal, {}, Settings()).delete("/a.log")
    writer.write(b"two")
    writer.flush()  # its members know nothing of it yet
    files._renewer.renew()

    writer.write(b"three")
    with pytest.raises(FencedError, match="does not exist any more"):
        writer.flush()


def test_nothing_is_removed_in_safe_mode(world: FileWorld) -> None:
    files = world.process()
    world.write(files, "/a.log", b"one")
    (block,) = world.rows(Block)
    assert isinstance(block, Block)
    files.delete("/a.log")
    add_operators_reason(world.journal, "test")
    with pytest.raises(SafeModeError, match="test"):
        files.remove_deleted()
    with pytest.raises(SafeModeError):
        world.journal.apply(RemoveBlocks(blocks=(block.block,)))
    assert files.remove_deleted(dry_run=True).blocks == 1
    assert len(world.rows(Block)) == 1


def test_a_directory_of_any_size_is_deleted_in_one_entry_and_removed_in_batches(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.storage_core.files.namespace.queries.PAGE", 3)
    files = world.process()
    files.make_directory("/logs/deep", parents=True)
    for number in range(7):
        world.write(files, f"/logs/{number}.log")
        world.write(files, f"/logs/deep/{number}.log", b"x")
    with pytest.raises(ConflictError, match="not empty"):
        files.delete("/logs")
    before = world.journal.status().stamp.sequence
    files.delete("/logs", recursive=True)
    assert world.journal.status().stamp.sequence == before + 1
    assert files.list("/") == []
    with pytest.raises(ObjectNotFoundError):
        files.create("/logs/deep/late.log")

    removed = files.remove_deleted()
    assert (removed.files, removed.kept_blocks) == (16, 0)
    assert [world.rows(kind) for kind in (Inode, File, Block, Member, Lease)] == [[], [], [], [], []]


def test_a_removal_that_dies_at_any_step_is_continued(world: FileWorld) -> None:
    for die_at in itertools.count():
        files = world.process()
        files.make_directory("/logs")
        world.write(files, "/logs/a.log")
        files.delete("/logs", recursive=True)
        steps = itertools.count()

        def die(point: str, die_at: int = die_at, steps: Iterator[int] = steps) -> None:
            if next(steps) == die_at:
                raise Crash(point)

        FAILPOINTS.observer = die
        died = True
        try:
            files.remove_deleted()
            died = False
        except Crash:
            pass
        finally:
            FAILPOINTS.observer = None
        files.remove_deleted()
        assert world.rows(Inode) == world.rows(Block) == world.rows(Member) == []
        if not died:
            assert die_at > 8
            return


def test_blocks_on_a_volume_that_does_not_answer_are_kept_for_the_next_removal(world: FileWorld) -> None:
    files = world.process()
    world.write(files, "/a.log", b"one")
    files.delete("/a.log")
    name, away = world.volumes.popitem()

    assert files.remove_deleted().kept_blocks == 1
    world.volumes[name] = away
    removed = files.remove_deleted()
    assert (removed.files, removed.blocks, removed.kept_blocks) == (1, 1, 0)


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


def test_a_file_without_reachable_volumes_is_an_error(world: FileWorld) -> None:
    files = world.process()
    world.stop_volumes()
    world.volumes.clear()
    with pytest.raises(StoreUnavailableError, match="no volume of appendable files can be reached"):
        files.create("/a.log").write(b"x" * 9)


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


def test_entries_of_files_are_verified_and_restored(world: FileWorld) -> None:
    files = world.process()
    files.make_directory("/logs")
    world.write(files, "/logs/a.log")
    world.write(files, "/logs/b.log")
    files.truncate("/logs/a.log", 9)
    files.rename("/logs/a.log", "/a.log")
    files.delete("/logs", recursive=True)
    files.remove_deleted()

    assert world.journals.verify().findings == ()
    world.journals.checkpoint()
    world.write(files, "/c.log")
    before = world.journals.rows()
    world.journals.restore(with_entries=True)
    after = world.journals.rows(world.journals.spare_url)
    for table in ("inode", "file", "file_block", "file_member", "volume"):
        assert after[table] == before[table]


def test_the_last_flush_of_a_stopped_volume_counts_after_its_restart(world: FileWorld) -> None:
    ended = world.process()
    writer = ended.create("/a.log")
    writer.write(b"one")
    writer.flush()
    ended.close()
    world.restart_volumes()
    files = world.process()
    world.lapse(files)

    (found,) = files.recovery.recover_lapsed()
    assert found.length_bytes == 3
    (block,) = world.rows(Block)
    assert isinstance(block, Block)
    assert block.state is ReplicaState.SEALED
    assert files.open("/a.log").read() == b"one"


def test_an_entry_without_the_lease_changes_nothing(world: FileWorld) -> None:
    files = world.process()
    writer = files.create("/a.log")
    resource = file_resource(files.status("/a.log").inode)
    op = AddBlock(resource=resource, stamp=Stamp(1, 999), members=tuple(world.volumes))

    (outcome,) = world.journal.write([Mutation(op=op)])
    assert isinstance(outcome, Refused)
    assert isinstance(outcome.error, FencedError)
    assert world.rows(Block) == []
    writer.close()


def test_of_two_reseals_only_the_newer_is_committed(world: FileWorld) -> None:
    files = world.process()
    with files.create("/a.log") as writer:
        writer.write(b"one")
    opened = OpenFile(path="/a.log", mode="append", holder="h", soft_s=30, hard_s=120)
    lease = world.journal.apply(opened).result.stamp
    blocks = JournalBlocks(world.journal, files.status("/a.log").inode, lease, choose=tuple)
    (record,) = blocks.records()
    older, newer = blocks.stamp(record.block, 2), blocks.stamp(record.block, 1)
    assert (older.target_bytes, newer.target_bytes) == (2, 2)  # the first target stays until a commit

    def commit(stamp: Stamp, members: tuple[VolumeId, ...]) -> BlockRecord:
        return blocks.commit(record.block, stamp, length_bytes=2, members=members, state=ReplicaState.SEALED)

    for stamp in (record.stamp, older.newest):
        with pytest.raises(FencedError, match="another reseal has begun"):
            commit(stamp, record.members)
    with pytest.raises(InvalidInputError, match="its members are"):
        commit(newer.newest, (*record.members, VolumeId("unknown")))
    done = commit(newer.newest, record.members[:2])
    assert (done.stamp, done.members, done.target_bytes) == (newer.newest, record.members[:2], None)
    assert files.status("/a.log").length_bytes == 2


def test_a_block_is_added_after_a_sealed_one_only_and_on_registered_volumes(world: FileWorld) -> None:
    files = world.process()
    with files.create("/a.log") as writer:
        writer.write(b"one")
    opened = OpenFile(path="/a.log", mode="append", holder="h", soft_s=30, hard_s=120)
    lease = world.journal.apply(opened).result.stamp
    inode = files.status("/a.log").inode

    def blocks(*members: str) -> JournalBlocks:
        return JournalBlocks(world.journal, inode, lease, lambda: tuple(map(VolumeId, members)))

    known = next(iter(world.volumes))
    with pytest.raises(ObjectNotFoundError, match="volume unknown is not registered"):
        blocks("unknown").add()
    for members in ((), (known, known)):
        with pytest.raises(InvalidInputError, match="distinct members"):
            blocks(*members).add()
    added = blocks(known).add()
    with pytest.raises(ConflictError, match="is not sealed"):
        blocks(known).add()
    with pytest.raises(ConflictError, match="the file stays open"):
        blocks(known).close()
    assert added.length_bytes == 0
