"""A volume in a directory: what is read and written, faults of the disk, and what is set aside."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.volumes import disk as disk_calls
from lockgate.storage_core.files.volumes.directory import log, log_writer, replica_files
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.directory.log_format import HEAD_BYTES
from lockgate.storage_core.files.volumes.directory.log_writer import LogWriter
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import ManualClock
from tests.support.files.directory_volumes import (
    OTHER,
    S0,
    S1,
    S2,
    S3,
    S9,
    SEALED,
    WRITING,
    B,
    fence_and_append,
    flush,
    log_of,
    whole_replica,
    written,
)
from tests.support.files.faulty_volumes import FaultyDisk


def test_a_replica_of_the_last_possible_epoch_is_found_by_another_process(tmp_path: Path) -> None:
    last = Stamp(10**18 - 1, 1)
    with written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        flush(volume, last, volume.fence(B, last, S1).length_bytes, b"d")
        assert other.read(B, last, 0, 9) == b"abcd"


def test_what_another_process_writes_is_read_as_it_grows(tmp_path: Path) -> None:
    with written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        whole = b"abc"
        for number in range(40):
            found = other.stat(B)
            assert found is not None
            assert (found.length_bytes, found.acknowledged_bytes) == (len(whole), len(whole))
            assert other.read(B, S1, 0, 1000) == whole
            flush(volume, S1, len(whole), b"%03d" % number)
            whole += b"%03d" % number
        with pytest.raises(ConflictError, match="does not write its log"):
            other.append(B, S1, len(whole), b"x")


def test_a_replica_that_is_deleted_while_it_is_looked_at_is_gone_and_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = log._open
    with written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:

        def then_deleted(*name: str) -> tuple[int, str]:
            found = opened(*name)
            volume.delete(B, S1)  # which cuts the log that is open
            return found

        monkeypatch.setattr(log, "_open", then_deleted)
        assert other.stat(B) is None


def test_a_replica_is_one_log_however_often_it_was_fenced_and_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SPAN_BYTES", 4)
    with DirectoryVolume(tmp_path) as volume:
        volume.create(B, S0)
        flush(volume, S0, 0, whole := b"first")
        for number in range(1, 9):
            stamp, before = Stamp(2, number), Stamp(2, number - 1) if number > 1 else S0
            assert volume.fence(B, stamp, before).acknowledged_bytes == len(whole)
            if number % 3 == 0:
                whole = whole[:-3]
                volume.trim(B, stamp, len(whole))
            flush(volume, stamp, len(whole), b"%d" % number)
            whole += b"%d" % number
            volume.finish(B, stamp, len(whole), SEALED)
            for one in (volume, DirectoryVolume(tmp_path)):
                for offset, size in itertools.product(range(len(whole)), range(len(whole))):
                    assert one.read(B, stamp, offset, size) == whole[offset : offset + size]
            assert volume.replicas(None, 1) == (volume.stat(B),)
            assert len(list(log_of(tmp_path).parent.iterdir())) == 1


def test_large_appends_are_begun_to_be_written_before_their_sync_and_read_from_any_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Mock()
    monkeypatch.setattr(log_writer, "_BEGUN_BYTES", 1)
    monkeypatch.setattr(disk_calls, "_sync_file_range", begin)
    large = bytes(range(256)) * 256
    whole = b"abc" + large + b"small" + large
    with written(tmp_path) as volume:
        begin.assert_not_called()
        for piece in (large, b"small", large):
            volume.append(B, S1, volume.stat(B).length_bytes, piece)  # type: ignore[union-attr]
        assert begin.call_count == 2
        assert volume.stat(B).durable_bytes == 3  # type: ignore[union-attr]
        volume.flush(B, S1)
        for one in (volume, DirectoryVolume(tmp_path)):
            for offset, size in itertools.product((0, 3, 65_538, 65_539, 65_544, len(whole)), (1, 6, 70_000)):
                assert one.read(B, S1, offset, size) == whole[offset : offset + size]


def test_small_flushes_seldom_lengthen_the_log_and_a_sealed_one_has_no_zeros(tmp_path: Path) -> None:
    sizes = set[int]()
    with written(tmp_path) as volume:
        for number in range(300):
            flush(volume, S1, 3 + 1000 * number, b"%04d" % number * 250)
            sizes.add(log_of(tmp_path).stat().st_size)
        assert len(sizes) < 20
        volume.finish(B, S1, 300_003, SEALED)
        assert log_of(tmp_path).stat().st_size < 300_003 + 302 * HEAD_BYTES + 4096


def test_a_block_of_very_many_small_frames_takes_few_bytes_of_memory_for_each(tmp_path: Path) -> None:
    count = 5_000
    with written(tmp_path) as volume:
        tracemalloc.start()
        for number in range(count):
            volume.append(B, S1, 3 + number, b"x")
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert taken < 100 * count


def test_a_full_disk_refuses_an_append_and_keeps_what_is_flushed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with written(tmp_path, disk) as volume:
        disk.fail("write", errno.ENOSPC)
        with pytest.raises(StoreUnavailableError, match="full"):
            volume.append(B, S1, 3, b"def")
        volume.acknowledge(B, S1, 3)
        disk.fail("")
        flush(volume, S1, 3, b"xyz")
        assert volume.read(B, S1, 0, 9) == whole_replica(tmp_path)[1] == b"abcxyz"


def test_a_failed_sync_is_not_repeated_and_its_bytes_do_not_come_back(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with written(tmp_path, disk) as volume:
        volume.append(B, S1, 3, b"def")
        disk.fail("sync")
        with pytest.raises(OutcomeUnknownError):
            volume.flush(B, S1)
        disk.fail("")
        for call in (
            lambda: volume.flush(B, S1),
            lambda: volume.append(B, S1, 6, b"ghi"),
            lambda: volume.finish(B, S1, 6, SEALED),
        ):
            with pytest.raises(ConflictError, match="failed"):
                call()
        assert volume.read(B, S1, 0, 9) == b"abc"
        assert volume.fence(B, S2, S1).length_bytes == 3
        assert volume.read(B, S2, 0, 9) == b"abc"


def test_what_a_log_does_not_call_durable_is_made_so_before_it_is_shown_and_copied_by_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its writer knows whether its sync has failed, or an NFS server has the bytes in memory only."""
    large, synced, sync = b"x" * 2**21, [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_ino) or sync(file))
    with written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        flush(volume, S1, 3, large)
        synced.clear()
        found = other.stat(B)
        assert (found.durable_bytes if found else 0, synced) == (3 + len(large), [])
        volume.append(B, S1, 3 + len(large), b"not flushed")
        found = other.stat(B)
        assert (found.durable_bytes if found else 0, len(synced)) == (14 + len(large), 1)
        assert other.fence(B, S2, S1).length_bytes == 14 + len(large)
        assert other.read(B, S1, 3 + len(large), 99) == b"not flushed"
    assert whole_replica(tmp_path)[0].length_bytes == 14 + len(large)
    with DirectoryVolume(tmp_path) as third:
        assert third.read(B, S9, 0, 2**22) == b"abc" + large + b"not flushed"


@pytest.mark.parametrize("number", [1, 2])
def test_a_creation_whose_name_may_not_be_durable_is_not_taken_for_done(tmp_path: Path, number: int) -> None:
    disk = FaultyDisk()
    with written(tmp_path, disk) as volume:
        syncs = itertools.count(1)
        names: dict[str, bool] = {}

        def sync_directory(folder: Path) -> None:
            name = folder.name.partition(".")[0]
            names[name] = next(syncs) != number
            if not names[name]:
                raise OSError(errno.EIO, "on purpose")

        disk.__dict__["sync_directory"] = sync_directory
        with pytest.raises(OutcomeUnknownError):
            volume.create(OTHER, S1)
        volume.create(OTHER, S1)
        try:
            volume.append(OTHER, S1, 0, b"x")
            volume.flush(OTHER, S1)
        except ConflictError:
            volume.fence(OTHER, S2, S1)
            volume.append(OTHER, S2, 0, b"x")
            volume.flush(OTHER, S2)
        assert all(names.values())


def test_a_claim_of_a_process_that_has_died_does_not_keep_a_replica_for_ever(tmp_path: Path) -> None:
    with written(tmp_path) as volume:
        claim = log_of(tmp_path, S2, "abcd.new")
        claim.touch()
        assert not volume.delete(B, S1)
        os.utime(claim, (0, 0))
        assert volume.delete(B, S1)
        assert volume.stat(B) is None


def test_a_writer_under_whose_log_an_older_copy_was_put_back_is_told(tmp_path: Path) -> None:
    with written(tmp_path) as volume:
        copy = tmp_path / "backup"
        shutil.copy(log_of(tmp_path), copy)
        flush(volume, S1, 3, b"def")
        copy.rename(log_of(tmp_path))
        with pytest.raises(FencedError):
            volume.flush(B, S1)
    assert whole_replica(tmp_path)[1] == b"abc"


def test_a_flush_behind_a_fence_is_refused_though_its_log_is_still_there(tmp_path: Path) -> None:
    kept = Disk()
    kept.discard = Mock()  # type: ignore[method-assign]  # as before it, on NFS, or with another link
    with written(tmp_path) as writer, DirectoryVolume(tmp_path, disk=kept) as other:
        other.fence(B, S2, S1)
        with pytest.raises(FencedError):
            flush(writer, S1, 3, b"late")
    assert kept.discard.called


def test_a_copy_takes_the_place_of_what_a_deletion_that_died_has_left(tmp_path: Path) -> None:
    with DirectoryVolume(tmp_path) as volume:
        for stamp in (S1, S3):  # of fences that died before the deletion did
            claim = log_of(tmp_path, stamp, "abcd.new")
            claim.parent.mkdir(exist_ok=True)
            claim.touch()
            os.utime(claim, (0, 0))
        volume.store(B, S2, [b"abc"])
        assert volume.read(B, S2, 0, 3) == b"abc"
        assert [one.name for one in claim.parent.iterdir()] == [log_of(tmp_path, S2).name]


def test_a_writer_that_is_interrupted_in_a_write_takes_no_more(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with written(tmp_path, disk) as volume:

        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        disk.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            volume.append(B, S1, 3, b"def")
        disk.before = lambda _: None
        with pytest.raises(ConflictError):
            volume.append(B, S1, 3, b"xyz")
        assert volume.fence(B, S2, S1).length_bytes == 3


def test_logs_stay_open_while_they_are_written_and_never_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_logs() -> int:
        links = (Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd"))  # noqa: PTH208
        named = [os.readlink(link) for link in links if link.is_symlink()]  # noqa: PTH115
        return sum(name.startswith(str(tmp_path)) for name in named)

    monkeypatch.setattr(log_writer, "_KEPT_OPEN", len(log_writer._kept_open) + 2)
    blocks = [BlockId(number) for number in range(1, 5)]
    with DirectoryVolume(tmp_path) as volume:
        for block in blocks:
            volume.create(block, S1)
            for at in (0, 1):
                volume.append(block, S1, at, b"x")
                volume.flush(block, S1)
        assert open_logs() == 2
        volume.finish(blocks[0], S1, 2, SEALED)
        volume.delete(blocks[1], S1)
        volume.delete(blocks[2], S1)
        assert open_logs() == 0
        volume.append(blocks[3], S1, 2, b"z")
        volume.flush(blocks[3], S1)
        assert (open_logs(), volume.read(blocks[3], S1, 0, 9)) == (1, b"xxz")
    assert open_logs() == 0


@pytest.mark.parametrize("at", [S0, S1, None])
def test_a_stored_replica_takes_the_place_of_a_damaged_or_older_one_at_once(
    tmp_path: Path, at: Stamp | None
) -> None:
    with DirectoryVolume(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        if at is not None:
            volume.create(B, at)
            flush(volume, at, 0, b"abcdef")
            volume.finish(B, at, 6, SEALED)
            assert other.read(B, at, 0, 6) == b"abcdef"

        def pieces(*, is_whole: bool) -> Iterator[bytes]:
            yield b"123"
            assert at is None or other.read(B, at, 0, 9) == b"abcdef"
            if not is_whole:
                raise StoreUnavailableError("on purpose")
            yield b"4"

        with pytest.raises(StoreUnavailableError, match="on purpose"):
            other.store(B, S1, pieces(is_whole=False))
        before = volume.stat(B)
        assert (before.length_bytes if before else None) == (None if at is None else 6)
        other.store(B, S1, pieces(is_whole=True))
        for one in (volume, other, DirectoryVolume(tmp_path)):
            assert one.read(B, S1, 0, 9) == b"1234"
            assert one.stat(B) == one.replicas(None, 1)[0]
        assert [path.name for path in log_of(tmp_path).parent.iterdir()] == [log_of(tmp_path).name]
        assert not (tmp_path / "staging").exists()
        other.fence(B, S3, S1)
        with pytest.raises(FencedError):
            volume.store(B, S2, [b"late"])


def test_a_log_that_was_fenced_or_deleted_takes_no_room_while_its_writer_lives(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with written(tmp_path) as writer, DirectoryVolume(tmp_path) as other:
        backup.hardlink_to(log_of(tmp_path))
        other.fence(B, S2, S1)  # of a writer that was interrupted
        assert b"abc" in backup.read_bytes()
        flush(other, S2, 3, bytes(2**20))
        with log_of(tmp_path, S2).open() as second:
            writer.fence(B, S3, S1)
            assert os.fstat(second.fileno()).st_blocks == 0
        with pytest.raises(FencedError):
            flush(other, S2, 3 + 2**20, b"late")
        with log_of(tmp_path, S3).open() as third:
            assert other.delete(B, S3)
            assert os.fstat(third.fileno()).st_blocks == 0


def test_the_log_of_a_damaged_replica_stays_until_its_length_was_chosen(tmp_path: Path) -> None:
    with written(tmp_path) as volume:
        flush(volume, S1, 3, b"def")
    log_of(tmp_path).write_bytes(log_of(tmp_path).read_bytes().replace(b"abc", b"abd"))
    with DirectoryVolume(tmp_path) as volume:
        assert volume.fence(B, S2, S1).damage
        assert b"def" in log_of(tmp_path, suffix="fenced").read_bytes()
        volume.finish(B, S2, 0, WRITING)
        volume.fence(B, S3, S2)
        assert [path.name for path in log_of(tmp_path).parent.iterdir()] == [log_of(tmp_path, S3).name]


def test_bytes_that_a_fence_has_copied_are_missed_though_not_acknowledged(tmp_path: Path) -> None:
    with DirectoryVolume(tmp_path) as volume:
        volume.create(B, S1)
        volume.append(B, S1, 0, b"abc")
        volume.fence(B, S2, S1)
    log = log_of(tmp_path, S2)
    log.write_bytes(log.read_bytes().rstrip(b"\0")[:-1])
    with DirectoryVolume(tmp_path) as volume:
        assert volume.stat(B).damage  # type: ignore[union-attr]


def test_what_a_dead_process_has_staged_is_deleted_by_a_later_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written(tmp_path) as volume:
        left = tmp_path / "staging" / f"{OTHER:020d}.abcd"
        left.mkdir(parents=True)
        volume.delete(OTHER, S1)
        assert left.exists()
        monkeypatch.setattr(replica_files, "_LEFT_OVER_S", -1.0)
        volume.delete(OTHER, S1)
        assert not left.exists()


def test_a_volume_is_closed_between_two_calls_not_in_one(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with written(tmp_path, disk) as volume, ThreadPoolExecutor() as threads:
        closing: list[Future[None]] = []

        def close(_: int) -> None:
            disk.before = lambda _: None
            closing.append(threads.submit(volume.close))
            with pytest.raises(TimeoutError):
                closing[0].result(0.1)

        disk.before = close
        assert volume.append(B, S1, 3, b"d") == 4
        closing[0].result()


def test_a_name_that_a_client_of_nfs_remembers_is_no_proof_of_the_pen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux trusts names in a folder for up to a minute, and asks for them if the folder was opened."""
    with written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        volume.append(B, S1, 3, b"late")
        path, remembered, is_remembered, open_file = log_of(tmp_path), tmp_path / "old", True, os.open
        remembered.hardlink_to(path)
        other.fence(B, S2, S1)

        def open_by_name(name: str, *arguments: int) -> int:
            nonlocal is_remembered
            is_remembered = is_remembered and Path(name) != path.parent
            return open_file(remembered if is_remembered and Path(name) == path else name, *arguments)

        monkeypatch.setattr(os, "open", open_by_name)
        with pytest.raises(FencedError):
            volume.flush(B, S1)


def test_a_late_write_is_not_read_at_its_stamp_after_a_fence_that_was_not_committed(tmp_path: Path) -> None:
    volume = written(tmp_path)
    with DirectoryVolume(tmp_path) as other:
        other.fence(B, S2, S1)
        fence_and_append(S3, b"XY")(other)
        volume.append(B, S1, 3, b"late")
        for one in (volume, other, DirectoryVolume(tmp_path)):
            assert one.read(B, S1, 0, 100) == b"abc"


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_late_write_is_not_shown_before_the_fence_has_made_its_log(tmp_path: Path, is_sealed: bool) -> None:
    with written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        record = BlockRecord(B, S1, (other.id,), 3, WRITING)
        follow = partial(Reader, lambda: (record,), {other.id: other}, clock=ManualClock())
        log_of(tmp_path).rename(log_of(tmp_path, suffix="fenced"))
        assert follow().read() == b"abc"
        volume.append(B, S1, 3, b"late")
        if is_sealed:
            with pytest.raises(FencedError):
                volume.finish(B, S1, 7, SEALED)
        with pytest.raises(StoreUnavailableError, match="is being recovered"):
            follow()
        other.fence(B, S2, S1)
        assert follow().read() == b"abclate"


def test_a_read_has_nothing_that_was_cut_since_another_process_has_looked(tmp_path: Path) -> None:
    with written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        volume.fence(B, S2, S1)
        assert other.stat(B)
        volume.trim(B, S2, 1)
        flush(volume, S2, 1, b"XY")
        volume.finish(B, S2, 3, SEALED)
        assert other.read(B, S2, 0, 3) == b"aXY"


def test_a_trim_that_is_done_while_a_newer_fence_copies_is_not_taken_for_the_log_that_was_fenced(
    tmp_path: Path,
) -> None:
    has_looked, goes_on, cut = threading.Event(), threading.Event(), list[Future[Replica]]()
    older, newer = FaultyDisk(), FaultyDisk()
    with (
        DirectoryVolume(tmp_path, disk=older) as first,
        DirectoryVolume(tmp_path, disk=newer) as second,
        ThreadPoolExecutor() as threads,
    ):
        first.create(B, S1)
        flush(first, S1, 0, b"abc")
        first.fence(B, S2, S1)

        def give_its_name(claim: Path, path: Path) -> None:
            has_looked.set()
            goes_on.wait()
            Disk.rename(older, claim, path)

        def take_the_pen(log: Path, path: Path) -> None:
            if path.suffix == ".fenced":
                cut.append(threads.submit(first.trim, B, S2, 1))
                has_looked.wait()
            Disk.rename(newer, log, path)

        def write(*arguments: int) -> None:
            goes_on.set()
            with pytest.raises(FencedError):
                cut[0].result()
            Disk.write(newer, *arguments)

        older.__dict__["rename"] = give_its_name
        newer.__dict__.update(rename=take_the_pen, write=write)
        assert second.fence(B, S3, S1).length_bytes == 3
        assert [path.name for path in log_of(tmp_path).parent.iterdir()] == [log_of(tmp_path, S3).name]
    assert whole_replica(tmp_path)[1] == b"abc"


def test_the_claim_of_a_fence_that_died_takes_no_room_from_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path).close()
    dead = log_of(tmp_path, S2, "log").with_suffix(".0a.new")
    dead.write_bytes(b"x" * 100)
    claims: list[int] = []
    begin = LogWriter.begin.__func__  # type: ignore[attr-defined]

    def counted(kind: type[LogWriter], *arguments: object) -> object:
        claims.append(len([*dead.parent.glob("*.new")]))
        return begin(kind, *arguments)

    monkeypatch.setattr(LogWriter, "begin", classmethod(counted))
    with DirectoryVolume(tmp_path) as volume:
        volume.fence(B, S3, S1)
        assert volume.read(B, S3, 0, 9) == b"abc"
    assert claims == [1]  # its own


def test_a_reader_that_knows_an_older_log_lists_the_folder(tmp_path: Path) -> None:
    with written(tmp_path) as writer, DirectoryVolume(tmp_path) as reader:
        writer.finish(B, S1, 3, SEALED)
        assert reader.read(B, S1, 0, 3) == b"abc"
        writer.fence(B, S2, S1)
        writer.finish(B, S2, 3, WRITING)
        flush(writer, S2, 3, b"de")
        writer.finish(B, S2, 5, SEALED)
        assert reader.read(B, S2, 0, 5) == b"abcde"
