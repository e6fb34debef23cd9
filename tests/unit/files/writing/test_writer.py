"""Flushed bytes are durable on all members; members that fail are dropped; readers follow."""

from __future__ import annotations

import csv
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from lockgate.storage_core.errors import (
    FencedError,
    InvalidInputError,
    MalformedRecordError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.reseal import reseal
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.writing.writer import Writer
from tests.support.commit.destination import ManualClock, crash_at
from tests.support.files.memory_blocks import MemoryBlocks, MemoryJournal
from tests.support.files.memory_volume import MemoryVolume

A, B, C = VolumeId("a"), VolumeId("b"), VolumeId("c")


class Scene:
    """A file on three volumes."""

    def __init__(self) -> None:
        self.volumes = {name: MemoryVolume() for name in (A, B, C)}
        self.journal = MemoryJournal((A, B, C))
        self.clock = ManualClock()

    def writer(self, holder: str = "writer", *, block_bytes: int = 1000) -> Writer:
        return Writer(MemoryBlocks(self.journal, holder), self.volumes, block_bytes=block_bytes)

    def reader(self) -> Reader:
        return Reader(lambda: tuple(self.journal.rows.values()), self.volumes, clock=self.clock)

    def recover(self) -> None:
        blocks = MemoryBlocks(self.journal, "recovery")
        for row in blocks.records():
            if row.state is ReplicaState.WRITING or row.pending:
                reseal(blocks, self.volumes, row.block, ends=ReplicaState.SEALED)

    def read(self) -> bytes:
        return self.reader().read()

    @property
    def members(self) -> tuple[VolumeId, ...]:
        return list(self.journal.rows.values())[-1].members


@pytest.fixture
def scene() -> Iterator[Scene]:
    yield Scene()
    FAILPOINTS.observer = None


@pytest.mark.parametrize("call", ["create", "append", "flush", "finish"])
def test_a_lost_answer_of_a_member_is_asked_again(scene: Scene, call: str) -> None:
    scene.volumes[B].loses.add(call)
    with scene.writer() as writer:
        writer.write(b"one")
        writer.flush()
        writer.write(b", two")

    assert scene.members == (A, B, C)
    assert scene.read() == b"one, two"


def test_a_file_stays_writable_when_all_its_volumes_are_restarted(scene: Scene) -> None:
    writer = scene.writer()
    writer.write(b"one")
    writer.flush()
    writer.write(b", two")
    for volume in scene.volumes.values():
        volume.restart()
    writer.flush()
    writer.close()

    assert scene.members == (A, B, C)
    assert scene.read() == b"one, two"


def test_bytes_are_kept_while_no_member_answers_and_sent_by_the_next_flush(scene: Scene) -> None:
    writer = scene.writer()
    writer.write(b"one")
    writer.flush()
    for volume in scene.volumes.values():
        volume.is_up = False
    writer.write(b", two")
    with pytest.raises(StoreUnavailableError):
        writer.flush()
    for volume in scene.volumes.values():
        volume.is_up = True
    writer.close()

    assert scene.read() == b"one, two"


@pytest.mark.parametrize("ends", ["write", "flush", "close"])
def test_a_write_that_fails_between_two_blocks_is_kept_whole(scene: Scene, ends: str) -> None:
    writer = scene.writer(block_bytes=4)
    for volume in scene.volumes.values():
        volume.is_up = False
    for data in (b"0123456789", b"ab"):
        with pytest.raises(StoreUnavailableError):
            writer.write(data)
    assert writer.tell() == 12
    for volume in scene.volumes.values():
        volume.is_up = True
    if ends == "write":
        writer.write(b"")
    elif ends == "flush":
        writer.flush()
        assert scene.read() == b"0123456789ab"
    writer.close()

    assert scene.read() == b"0123456789ab"


def test_a_full_block_whose_entry_has_no_answer_is_followed_by_one_block(scene: Scene) -> None:
    writer = scene.writer(block_bytes=4)
    writer.write(b"0123")
    scene.journal.is_lossy = True
    with pytest.raises(OutcomeUnknownError):
        writer.write(b"45")
    assert writer.tell() == 6
    writer.close()

    assert [row.length_bytes for row in scene.journal.rows.values()] == [4, 2]
    assert scene.read() == b"012345"


def test_a_block_that_no_member_could_create_is_replaced_by_the_next(scene: Scene) -> None:
    for volume in scene.volumes.values():
        volume.refuses.add("create")
    with scene.writer() as writer:
        writer.write(b"one")

    assert [(row.length_bytes, row.members) for row in scene.journal.rows.values()] == [
        (0, ()),
        (3, (A, B, C)),
    ]
    assert scene.read() == b"one"


def test_a_writer_does_not_go_on_if_all_members_lost_flushed_bytes(scene: Scene) -> None:
    writer = scene.writer()
    writer.write(b"one")
    writer.flush()
    for volume in scene.volumes.values():
        volume.restart(damaged_to=1)

    writer.write(b", two")
    with pytest.raises(MalformedRecordError, match="at least 3 bytes were flushed, and no volume"):
        writer.flush()


def test_a_writer_whose_block_was_taken_before_it_had_replicas_acknowledges_nothing(scene: Scene) -> None:
    first = scene.writer("first")

    def take(point: str) -> None:
        if point == "pipeline.create.before":
            FAILPOINTS.observer = None
            with scene.writer("second") as second:
                second.write(b"new")

    FAILPOINTS.observer = take
    first.write(b"old")
    for _ in range(2):
        with pytest.raises(FencedError):
            first.flush()
    assert scene.read() == b"new"


def test_a_reader_sees_no_byte_of_a_block_that_a_takeover_may_have_found_without_replicas(
    scene: Scene,
) -> None:
    seen = []

    def look(point: str) -> None:
        if point == "pipeline.flush.after":  # before the commit of the first flush, which may be refused
            seen.append(scene.reader().read())

    FAILPOINTS.observer = look
    with scene.writer() as writer:
        for data in (b"one", b"two"):
            writer.write(data)
            writer.flush()
    assert seen == [b"", b"onetwo"]


def test_a_reader_follows_a_file_across_blocks_repairs_and_its_close(scene: Scene) -> None:
    writer = scene.writer(block_bytes=8)
    reader = scene.reader()
    got = b""
    for number in range(20):
        if number in {5, 11}:
            scene.volumes[B if number == 5 else C].refuses.add("append")
        writer.write(f"{number},".encode())
        writer.flush()
        got += reader.read()
    writer.close()
    got += reader.read()

    assert got == "".join(f"{number}," for number in range(20)).encode()
    assert reader.read() == b""


def test_a_reader_raises_where_the_only_member_that_answers_is_damaged(scene: Scene) -> None:
    writer = scene.writer()
    writer.write(b"one")
    writer.flush()
    scene.volumes[A].restart(damaged_to=1)
    scene.volumes[B].is_up = scene.volumes[C].is_up = False

    with pytest.raises(MalformedRecordError, match=r"byte 0 \(block 1.*volume a: .*damaged at 1"):
        scene.read()


def test_a_reader_seeks(scene: Scene) -> None:
    with scene.writer(block_bytes=3) as writer:
        writer.write(b"0123456789")
    reader = io.BufferedReader(scene.reader())

    assert (reader.seek(-3, io.SEEK_END), reader.read()) == (7, b"789")
    assert (reader.seek(2), reader.read(3)) == (2, b"234")
    assert (reader.seek(1, io.SEEK_CUR), reader.read(1)) == (6, b"6")
    assert (reader.seek(100), reader.read()) == (100, b"")
    with pytest.raises(InvalidInputError, match="not negative"):
        scene.reader().seek(-1)


def test_csv_json_logging_and_arrow_write_to_a_file(scene: Scene) -> None:
    with io.TextIOWrapper(scene.writer(), encoding="utf-8", newline="") as text:  # type: ignore[type-var]
        csv.writer(text).writerow(["a", 1])
        json.dump({"b": 2}, text)
        handler = logging.StreamHandler(text)
        handler.emit(logging.LogRecord("n", logging.INFO, "p", 1, "logged", None, None))
        handler.close()
    assert scene.read() == b'a,1\r\n{"b": 2}logged\n'

    table = pa.table({"x": [1, 2, 3]})
    other = Scene()
    with other.writer() as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    assert pa.ipc.open_stream(other.reader()).read_all() == table


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("point", ["pipeline.flush.before", "pipeline.flush.after"])
def test_threads_share_a_writer(scene: Scene, point: str, *, flushes: bool) -> None:
    writer = scene.writer()
    writer.write(b"one")
    threads = [threading.Thread(target=writer.write, args=[b"two"])]
    threads += [threading.Thread(target=writer.flush)] * flushes

    def observe(name: str) -> None:
        if name == point and threads[0].ident is None:
            for thread in threads:
                thread.start()
                thread.join(0.1)  # it waits for the flush; without that it would end here

    FAILPOINTS.observer = observe
    writer.flush()
    for thread in threads:
        thread.join()
    writer.close()
    assert scene.read() == b"onetwo"
    with pytest.raises(ValueError, match="closed"):
        writer.flush()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"three")


@pytest.mark.parametrize("call", [lambda writer: writer.write(b"two"), Writer.flush, Writer.close])
def test_a_signal_handler_within_a_call_is_refused_and_harms_nothing(
    scene: Scene, call: Callable[[Writer], object]
) -> None:
    writer = scene.writer()
    writer.write(b"one")
    refused: list[str] = []

    def observe(name: str) -> None:
        if name == "pipeline.flush.after" and not refused:
            with pytest.raises(RuntimeError, match="within one of its calls") as refusal:
                call(writer)
            refused.append(str(refusal.value))

    FAILPOINTS.observer = observe
    writer.flush()
    assert refused
    writer.write(b"two")
    writer.close()
    assert scene.read() == b"onetwo"


def test_a_writer_needs_a_block_size(scene: Scene) -> None:
    with pytest.raises(InvalidInputError, match="block_bytes=0"):
        scene.writer(block_bytes=0)


POINTS = (
    [
        f"{point}.{side}"
        for point in ("pipeline.create", "pipeline.flush", "pipeline.finish")
        for side in ("before", "after")
    ]
    + ["pipeline.member-flush.before"]
    + [
        f"reseal.{point}.{side}"
        for point in ("stamp", "fence", "trim", "finish", "commit")
        for side in ("before", "after")
    ]
)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("hit", range(3))
def test_a_writer_that_dies_at_any_step_loses_no_flushed_byte(scene: Scene, point: str, hit: int) -> None:
    """A member fails in between, so the steps of a repair are passed too."""
    written, flushed = b"", b""

    def write() -> None:
        nonlocal written, flushed
        writer = scene.writer(block_bytes=10)
        for number in range(12):
            if number == 4:
                scene.volumes[B].refuses.add("append")
            line = f"{number},".encode()
            written += line
            writer.write(line)
            writer.flush()
            flushed += line
        writer.close()

    crash_at(hit, write, point)
    scene.recover()

    found = scene.read()
    assert found[: len(flushed)] == flushed
    assert written[: len(found)] == found
    for row in scene.journal.rows.values():
        assert row.state is ReplicaState.SEALED
        copies = {bytes(scene.volumes[name].stored[row.block].data) for name in row.members}
        assert len(copies) <= 1
