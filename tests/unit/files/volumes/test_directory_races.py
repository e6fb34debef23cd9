"""A volume in a directory: crashes at each call of the disk, and processes that race at each step."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    ObjectNotFoundError,
)
from lockgate.storage_core.files.volumes.directory import volume_folder
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.directory.log_writer import LogWriter
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import Replica
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import Crash
from tests.support.files.directory_volumes import (
    S0,
    S1,
    S2,
    S3,
    S9,
    SEALED,
    WRITING,
    B,
    SteppingDisk,
    fence_and_append,
    flush,
    log_of,
    whole_replica,
    written,
)


def test_a_crash_at_every_call_to_the_disk_loses_no_flushed_byte_and_no_fence(tmp_path: Path) -> None:
    def live(folder: Path, disk: Disk) -> None:
        nonlocal flushed, fenced
        with DirectoryVolume(folder, disk=disk) as volume:
            volume.create(B, S1)
            fenced = S1
            flush(volume, S1, 0, b"abcdef")
            flushed = b"abcdef"
            volume.fence(B, S2, S1)
            fenced, flushed = S2, b"abcd"  # the trim may or may not be applied from here on
            volume.trim(B, S2, 4)
            volume.finish(B, S2, 4, WRITING)
            flush(volume, S2, 4, b"XY")
            flushed = b"abcdXY"
            volume.finish(B, S2, 6, SEALED)

    for dies_at in itertools.count(1):
        folder, flushed, fenced = tmp_path / str(dies_at), b"", S0
        try:
            live(folder, SteppingDisk(dies_at))
        except Crash:
            pass
        else:
            break
        with DirectoryVolume(folder) as volume:
            found = volume.stat(B)
            if found is None:
                assert fenced == S0
                continue
            assert found.stamp >= fenced
            assert found.damage == ""
            assert volume.read(B, found.stamp, 0, 100).startswith(flushed)
            length = volume.fence(B, S9, fenced).length_bytes
            assert volume.append(B, S9, length, b"on") == length + 2
            assert volume.flush(B, S9) == length + 2
            assert volume.read(B, S9, 0, 100).startswith(flushed)
            assert volume.read(B, S9, length, 9) == b"on"
            assert not [path for path in log_of(folder).parent.iterdir() if path.suffix == ".new"]
    assert dies_at > 30


def _at_each_step(  # noqa: PLR0917 - a story in its order
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[DirectoryVolume], object],
    call: Callable[[DirectoryVolume], object],
    meanwhile: Callable[[DirectoryVolume], object],
    check: Callable[[Path, bool, bool], object],
) -> None:
    """Make a call, and let another process make another one at each of its steps.

    Args:
        tmp_path: Directory of the test.
        monkeypatch: For the listings of directories, which are steps, too.
        prepare: What was done before, by the process of the call.
        call: The call.
        meanwhile: The other one.
        check: Gets the folder, and whether each of both was not refused.
    """
    names_in = volume_folder.names_in
    for at in itertools.count(1):
        folder, disk, other = tmp_path / f"{at}", SteppingDisk(), list[bool]()
        volume, there = DirectoryVolume(folder, disk=disk), DirectoryVolume(folder)
        prepare(volume)

        def before(
            number: int, at: int = at, there: DirectoryVolume = there, other: list[bool] = other
        ) -> None:
            if number == at:
                monkeypatch.setattr(volume_folder, "names_in", names_in)
                other.append(_is_done(meanwhile, there))
                monkeypatch.setattr(volume_folder, "names_in", stepping)

        def stepping(path: str, disk: SteppingDisk = disk) -> list[str]:
            disk.step()
            return names_in(path)

        monkeypatch.setattr(volume_folder, "names_in", stepping)
        disk.calls, disk.before = 0, before
        is_done = _is_done(call, volume)
        monkeypatch.setattr(volume_folder, "names_in", names_in)
        if not other:
            break
        check(folder, is_done, other[0])
    assert at > 3


def _is_done(call: Callable[[DirectoryVolume], object], volume: DirectoryVolume) -> bool:
    try:
        call(volume)
    except (FencedError, ConflictError):
        return False
    except ObjectNotFoundError:
        assert volume.stat(B) is None
        return False
    return True


def _append(stamp: Stamp, offset: int, data: bytes) -> Callable[[DirectoryVolume], object]:
    return lambda volume: flush(volume, stamp, offset, data)


def _prepared(volume: DirectoryVolume) -> None:
    volume.create(B, S1)
    flush(volume, S1, 0, b"abc")


def _check_fenced(folder: Path, is_flushed: bool, is_fenced: bool) -> None:
    assert is_fenced
    _, found = whole_replica(folder)
    assert found in ({b"abcdefXY"} if is_flushed else {b"abcXY", b"abcdefXY"})


def test_a_fence_at_each_step_of_a_flush_has_its_bytes_or_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, fence = _append(S1, 3, b"def"), fence_and_append(S2, b"XY")
    _at_each_step(tmp_path, monkeypatch, _prepared, flush, fence, _check_fenced)


def test_a_flush_at_each_step_of_a_fence_is_in_it_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[DirectoryVolume] = []

    def prepare(volume: DirectoryVolume) -> None:
        writers.append(DirectoryVolume(Path(volume.path(B)).parent.parent))
        _prepared(writers[-1])

    _at_each_step(
        tmp_path,
        monkeypatch,
        prepare,
        fence_and_append(S2, b"XY"),
        lambda _: flush(writers[-1], S1, 3, b"def"),
        lambda folder, is_fenced, is_flushed: _check_fenced(folder, is_flushed, is_fenced),
    )


def test_a_trim_that_is_done_while_a_newer_fence_copies_is_not_taken_for_the_log_that_was_fenced(
    tmp_path: Path,
) -> None:
    has_looked, goes_on, cut = threading.Event(), threading.Event(), list[Future[Replica]]()
    older, newer = SteppingDisk(), SteppingDisk()
    with (
        DirectoryVolume(tmp_path, disk=older) as first,
        DirectoryVolume(tmp_path, disk=newer) as second,
        ThreadPoolExecutor() as threads,
    ):
        _prepared(first)
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


@pytest.mark.parametrize("committed", [S0, S1])
@pytest.mark.parametrize("is_older_first", [True, False])
def test_of_two_fences_the_newer_one_has_what_the_older_one_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_older_first: bool, committed: Stamp
) -> None:
    """The older one is interrupted at each step by the newer one, or the other way round."""

    def check(folder: Path, is_first: bool, is_second: bool) -> None:
        is_older, is_newer = (is_first, is_second) if is_older_first else (is_second, is_first)
        assert is_newer
        _, found = whole_replica(folder)
        assert found in ({b"abc2233"} if is_older else {b"abc33", b"abc2233"})

    _at_each_step(
        tmp_path,
        monkeypatch,
        _prepared,
        fence_and_append(*((S2, b"22") if is_older_first else (S3, b"33")), committed),
        fence_and_append(*((S3, b"33") if is_older_first else (S2, b"22")), committed),
        check,
    )


def test_a_fence_at_each_step_of_a_creation_stops_it_or_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(volume: DirectoryVolume) -> None:
        volume.create(B, S1)
        flush(volume, S1, 0, b"abc")

    def check(folder: Path, is_created: bool, is_fenced: bool) -> None:
        with DirectoryVolume(folder) as volume:
            found = volume.stat(B)
            assert found is not None
            assert (found.stamp, found.length_bytes) in {(S2, 0), (S2, 3), (S1, 3)}
            assert (found.stamp == S2) == is_fenced
            if is_created and is_fenced:
                assert found.length_bytes == 3

    _at_each_step(
        tmp_path, monkeypatch, lambda _: None, create, lambda volume: volume.fence(B, S2, S0), check
    )


def test_a_fence_at_each_step_of_a_deletion_comes_after_it_or_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(folder: Path, is_deleted: bool, is_fenced: bool) -> None:
        with DirectoryVolume(folder) as volume:
            found = volume.stat(B)
            assert (found is not None and found.stamp == S2 and found.length_bytes == 5) == is_fenced

    def call(volume: DirectoryVolume) -> None:
        volume.delete(B, S1)

    _at_each_step(tmp_path, monkeypatch, _prepared, call, fence_and_append(S2, b"XY"), check)


def test_a_copy_at_each_step_of_a_deletion_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion may have been paused since another process has made the same one."""
    tokens: list[str] = []

    def prepare(volume: DirectoryVolume) -> None:
        _prepared(volume)
        volume.finish(B, S1, 3, SEALED)
        tokens.append(volume.stat(B).token)  # type: ignore[union-attr]

    def copy(volume: DirectoryVolume) -> None:
        volume.delete(B, S1, tokens[-1])
        volume.store(B, S1, [b"copy"])

    def check(folder: Path, is_deleted: bool, is_copied: bool) -> None:
        assert is_deleted
        assert is_copied
        with DirectoryVolume(folder) as volume:
            assert volume.read(B, S1, 0, 9) == b"copy"

    delete = lambda volume: volume.delete(B, S1, tokens[-1])  # noqa: E731
    _at_each_step(tmp_path, monkeypatch, prepare, delete, copy, check)


def test_two_processes_that_create_one_replica_do_not_both_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(volume: DirectoryVolume) -> None:
        assert volume.create(B, S1).stamp == S1
        flush(volume, S1, 0, b"abc")

    def check(folder: Path, is_first: bool, is_second: bool) -> None:
        assert is_first or is_second
        assert whole_replica(folder)[1] == b"abc"
        assert [path.name for path in log_of(folder).parent.iterdir() if path.suffix == ".new"] == []

    _at_each_step(tmp_path, monkeypatch, lambda _: None, create, create, check)


def test_a_crash_at_each_call_of_a_deletion_leaves_the_replica_whole_or_gone(tmp_path: Path) -> None:
    for dies_at in itertools.count(1):
        folder = tmp_path / str(dies_at)
        written(folder).close()
        with DirectoryVolume(folder, disk=SteppingDisk(dies_at)) as volume:
            try:
                volume.delete(B, S1)
            except Crash:
                pass
            else:
                break
        with DirectoryVolume(folder) as volume:
            found = volume.stat(B)
            assert found is None or volume.read(B, S1, 0, 9) == b"abc"
            assert volume.delete(B, S1) is (found is not None)
            assert volume.stat(B) is None
    assert dies_at > 3


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
