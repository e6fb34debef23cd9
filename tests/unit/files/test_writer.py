"""Members that fail are dropped or asked again, bytes are kept meanwhile, and threads share a writer."""

from __future__ import annotations

import csv
import io
import json
import logging
import threading
from collections.abc import Callable
from unittest.mock import Mock

import pyarrow as pa
import pytest

from lockgate.storage_core.errors import (
    FencedError,
    InvalidInputError,
    MalformedRecordError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.writing import writer as writer_module
from lockgate.storage_core.files.writing.pipeline import UnflushedBytes
from lockgate.storage_core.files.writing.writer import FileWriter
from lockgate.storage_core.stores.gathered_bytes import SMALL_BYTES
from tests.support.files.faulty_volumes import FaultyBucket
from tests.support.files.file_world import NAMES, FileWorld, at

PATH = "/a.log"


@pytest.mark.parametrize("call", ["create", "append", "flush", "finish"])
def test_a_lost_answer_of_a_member_is_asked_again(world: FileWorld, call: str) -> None:
    world.opened[NAMES[1]].loses.add(call)
    with world.begin(b"one") as writer:
        writer.write(b", two")
    assert not world.opened[NAMES[1]].loses
    assert world.records(PATH)[0].members == NAMES
    world.check_sealed(PATH, b"one, two")


def test_a_member_that_refuses_an_append_is_dropped_although_it_answers(world: FileWorld) -> None:
    writer = world.begin(b"one")
    world.opened[NAMES[1]].refuses.add("append")
    writer.write(b", two")
    writer.close()
    assert world.records(PATH)[0].members == (NAMES[0], NAMES[2])
    world.check_sealed(PATH, b"one, two")


def test_a_file_stays_writable_when_all_its_volumes_are_restarted(world: FileWorld) -> None:
    writer = world.begin(b"one")
    writer.write(b", two")
    world.restart_volumes()
    writer.flush()
    writer.close()
    assert world.records(PATH)[0].members == NAMES
    world.check_sealed(PATH, b"one, two")


def test_bytes_that_a_bucket_has_gathered_and_forgotten_are_sent_again(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "SEND_BYTES", 1)
    bucket = FaultyBucket(world.root / "bucket")
    world.volumes[bucket.id] = bucket  # type: ignore[assignment]
    writer = world.files.create(PATH, members=[bucket.id])
    writer.write(b"one")
    bucket.restart()
    writer.flush()
    assert world.read() == b"one"
    writer.close()


@pytest.mark.parametrize("ends", ["write", "flush", "close"])
def test_a_write_that_fails_between_two_blocks_is_kept_whole(world: FileWorld, ends: str) -> None:
    writer = world.begin(b"0", block_bytes=4)
    with world.without(*NAMES):
        for data in (b"123456789", b"ab"):
            with pytest.raises(StoreUnavailableError):
                writer.write(data)
        with pytest.raises(StoreUnavailableError):
            writer.flush()
        assert writer.tell() == 12
    if ends == "write":
        writer.write(b"")
    elif ends == "flush":
        writer.flush()
        assert world.read() == b"0123456789ab"
    writer.close()
    world.check_sealed(PATH, b"0123456789ab")


def test_a_block_that_no_member_could_create_is_replaced_by_the_next(world: FileWorld) -> None:
    for volume in world.opened.values():
        volume.refuses.add("create")
    world.begin(b"one").close()
    blocks = [(row.length_bytes, row.members) for row in world.records(PATH)]
    assert blocks == [(0, ()), (3, NAMES)]
    world.check_sealed(PATH, b"one")


def test_a_writer_does_not_go_on_if_all_members_lost_flushed_bytes(world: FileWorld) -> None:
    writer = world.begin(b"one")
    for volume in world.opened.values():
        volume.flip(world.blocks()[-1], b"one")
    writer.write(b", two")
    with pytest.raises(MalformedRecordError, match="at least 3 bytes were flushed, and no volume"):
        writer.flush()


def test_a_reader_sees_no_byte_of_a_block_that_a_takeover_may_have_found_without_replicas(
    world: FileWorld,
) -> None:
    seen = []

    def look(point: str) -> None:
        if point == "pipeline.flush.after":  # before the commit of the first flush, which may be refused
            seen.append(world.read())

    FAILPOINTS.observer = look
    writer = world.begin(b"one")
    writer.write(b"two")
    writer.flush()
    assert seen == [b"", b"onetwo"]


def test_a_reader_follows_a_file_across_blocks_repairs_and_its_close(world: FileWorld) -> None:
    writer = world.begin(b"", block_bytes=8)
    reader = world.process().open(PATH)
    got = b""
    for number in range(20):
        if number in {5, 11}:
            world.opened[NAMES[1 if number == 5 else 2]].refuses.add("append")
        writer.write(f"{number},".encode())
        writer.flush()
        got += reader.read()
    writer.close()
    got += reader.read()
    assert got == "".join(f"{number}," for number in range(20)).encode()
    assert reader.read() == b""


def test_csv_json_logging_and_arrow_write_to_a_file(world: FileWorld) -> None:
    with io.TextIOWrapper(world.begin(b""), encoding="utf-8", newline="") as text:  # type: ignore[type-var]
        csv.writer(text).writerow(["a", 1])
        json.dump({"b": 2}, text)
        handler = logging.StreamHandler(text)
        handler.emit(logging.LogRecord("n", logging.INFO, "p", 1, "logged", None, None))
        handler.close()
    assert world.read() == b'a,1\r\n{"b": 2}logged\n'

    table = pa.table({"x": [1, 2, 3]})
    with world.files.create("/table") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    assert pa.ipc.open_stream(world.files.open("/table")).read_all() == table


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("point", ["pipeline.flush.before", "pipeline.flush.after"])
def test_threads_share_a_writer(world: FileWorld, point: str, *, flushes: bool) -> None:
    writer = world.begin(b"")
    writer.write(b"one")
    threads = [threading.Thread(target=writer.write, args=[b"two"])]
    threads += [threading.Thread(target=writer.flush)] * flushes

    def start() -> None:
        for thread in threads:
            thread.start()
            thread.join(0.1)  # it waits for the flush; without that it would end here

    with at(point, start):
        writer.flush()
    for thread in threads:
        thread.join()
    writer.close()
    assert world.read() == b"onetwo"
    for call in (writer.flush, lambda: writer.write(b"three")):
        with pytest.raises(ValueError, match="closed"):
            call()


@pytest.mark.parametrize("call", [lambda writer: writer.write(b"two"), FileWriter.flush, FileWriter.close])
def test_a_signal_handler_within_a_call_is_refused_and_harms_nothing(
    world: FileWorld, call: Callable[[FileWriter], object]
) -> None:
    writer = world.begin(b"")
    writer.write(b"one")

    def handle() -> None:
        with pytest.raises(RuntimeError, match="within one of its calls"):
            call(writer)

    with at("pipeline.flush.after", handle):
        writer.flush()
    writer.write(b"two")
    writer.close()
    assert world.read() == b"onetwo"


def test_the_lease_of_a_writer_that_was_interrupted_lapses_although_its_process_goes_on(
    world: FileWorld,
) -> None:
    files = world.process()
    writer = world.begin(b"one", files)
    with at("pipeline.flush.before", Mock(side_effect=KeyboardInterrupt)), pytest.raises(KeyboardInterrupt):
        writer.flush()
    world.clock.sleep(200)
    files.renewer.renew()
    assert [found.length_bytes for found in world.process().recovery.recover_lapsed()] == [3]
    with pytest.raises(FencedError, match="interrupted"):
        writer.flush()


def test_a_writer_needs_a_block_size(world: FileWorld) -> None:
    with pytest.raises(InvalidInputError, match="block_bytes=0"):
        world.begin(b"", block_bytes=0)


def test_one_piece_that_is_kept_is_not_copied() -> None:
    kept, data = UnflushedBytes(0), bytes(SMALL_BYTES)
    kept.add(data)
    assert kept.unsent() is data
