"""A log is published as it grows: only new bytes are uploaded, and replaced versions are deleted at once."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.logs.log_reader import LogReader, lines_of
from lockgate.storage_core.blobs.logs.log_versions import FULL_BYTES, MERGED, Log, LogVersion
from lockgate.storage_core.blobs.logs.log_writer import KEPT_S, PIECE_BYTES, LogWriter
from lockgate.storage_core.blobs.registry.blob_rows import Blob
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError
from tests.support.blobs.http_server import client_of, served
from tests.support.blobs.log_text import log_text
from tests.support.blobs.server import BlobWorld, blob_world
from tests.support.blobs.task_logs import LOG, append

pytestmark = pytest.mark.slow


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "attempt=1.log"
    path.touch()
    return path


def rows(world: BlobWorld) -> list[Blob]:
    with world.journal.reading() as reading:
        return list(reading.where(Blob, {}))


def part_rows(world: BlobWorld) -> list[Blob]:
    return [row for row in rows(world) if "version" not in row.name]


def log_bytes(world: BlobWorld, version: LogVersion) -> bytes:
    return b"".join(LogReader(world.server, LOG).read(version))


def test_a_growing_log_uploads_only_its_new_bytes(world: BlobWorld, file: Path) -> None:
    writer = LogWriter(world.server, LOG, file)
    append(file, b"first\n")
    writer.publish()
    append(file, b"second\n")
    version = writer.publish()
    assert [part.size_bytes for part in version.parts] == [6, 7]
    assert {row.name for row in part_rows(world)} == {f"{LOG.name} 0-6", f"{LOG.name} 6-13"}
    assert log_text(LogReader(world.server, LOG)) == "first\nsecond\n"


def test_the_older_version_is_deleted_as_soon_as_the_newer_one_is_visible(
    world: BlobWorld, file: Path
) -> None:
    writer = LogWriter(world.server, LOG, file)
    for _ in range(3):
        append(file, b"line\n")
        writer.publish()
    assert len([row for row in rows(world) if "version" in row.name]) == 1
    assert len(rows(world)) == 4
    assert len(list(world.server.stores.local.blobs("no_job"))) == 4


def test_many_small_parts_become_few(world: BlobWorld, file: Path) -> None:
    writer = LogWriter(world.server, LOG, file)
    moved = 0
    for number in range(MERGED**2 + 3):
        append(file, b"line %03d\n" % number)
        before = set(writer.version.parts)
        moved += sum(part.size_bytes for part in writer.publish().parts if part not in before)
    assert [part.level for part in writer.version.parts] == [2, 0, 0, 0]
    assert moved <= 3 * file.stat().st_size
    assert log_bytes(world, writer.version) == file.read_bytes()
    assert len(part_rows(world)) == 4


def test_large_parts_are_not_merged_and_large_writes_are_split(world: BlobWorld, file: Path) -> None:
    writer = LogWriter(world.server, LOG, file)
    append(file, b"x" * (PIECE_BYTES + FULL_BYTES))
    writer.publish()
    for _ in range(MERGED):
        append(file, b"line\n")
        writer.publish()
    sizes = [part.size_bytes for part in writer.version.parts]
    assert sizes == [PIECE_BYTES, FULL_BYTES, 5 * MERGED]
    assert log_bytes(world, writer.version) == file.read_bytes()


def test_a_range_fetches_only_the_parts_that_contain_it(world: BlobWorld, file: Path) -> None:
    writer = LogWriter(world.server, LOG, file)
    for data in (b"0123", b"4567", b"89"):
        append(file, data)
        writer.publish()
    fetched: list[BlobKey] = []

    def get(job_id: str, blob_key: BlobKey) -> bytes:
        fetched.append(blob_key)
        return world.server.get(job_id, blob_key)

    reader = LogReader(world.server, LOG, get=get)
    assert b"".join(reader.read(writer.version, 5, 7)) == b"56"
    assert fetched == [writer.version.parts[1].blob_key]
    assert b"".join(reader.read(writer.version, 3)) == b"3456789"
    assert b"".join(reader.read(writer.version, 9, 100)) == b"9"
    assert b"".join(reader.read(writer.version, 10)) == b""
    assert b"".join(reader.read(writer.version, 10 - 4_096)) == b"0123456789"


@pytest.mark.parametrize("after", [b"", b"new\n"])
def test_a_rotated_log_starts_from_its_beginning(world: BlobWorld, file: Path, after: bytes) -> None:
    writer = LogWriter(world.server, LOG, file)
    append(file, b"old bytes of the log\n")
    old = writer.publish()
    file.write_bytes(after)
    assert log_bytes(world, writer.publish()) == after
    assert len(rows(world)) == (2 if after else 1)
    with pytest.raises(ObjectNotFoundError, match="was rotated"):
        log_bytes(world, old)


def test_a_version_whose_parts_were_merged_is_read_from_a_newer_one(world: BlobWorld, file: Path) -> None:
    writer = LogWriter(world.server, LOG, file)
    append(file, b"first\n")
    old = writer.publish()
    for _ in range(MERGED):
        append(file, b"more\n")
        writer.publish()
    assert writer.version.parts[0].level == 1
    assert log_bytes(world, old) == b"first\n"


def test_another_writer_continues_the_same_file(world: BlobWorld, file: Path) -> None:
    append(file, b"first\n")
    before = LogWriter(world.server, LOG, file).publish()
    append(file, b"second\n")
    version = LogWriter(world.server, LOG, file).publish()
    assert version.parts[:1] == before.parts
    assert log_bytes(world, version) == b"first\nsecond\n"
    assert len(rows(world)) == 3


def test_a_task_that_resumes_on_another_machine_appends_to_its_log(world: BlobWorld, tmp_path: Path) -> None:
    here, there = tmp_path / "here.log", tmp_path / "there.log"
    here.write_bytes(b"before it deferred\n")
    LogWriter(world.server, LOG, here).publish()
    there.write_bytes(b"after\n")
    resumed = LogWriter(world.server, LOG, there)
    resumed.publish()
    append(there, b"more\n")
    version = resumed.publish()
    assert log_bytes(world, version) == b"before it deferred\nafter\nmore\n"
    append(there, b"last\n")
    again = LogWriter(world.server, LOG, there).publish()
    assert log_bytes(world, again) == b"before it deferred\nafter\nmore\nlast\n"


def test_a_task_that_returns_to_an_earlier_machine_publishes_only_the_new_bytes_there(
    world: BlobWorld, tmp_path: Path
) -> None:
    shown = b""
    for lap in range(MERGED + 2):
        for machine in (b"m1", b"m2"):
            line = b"%s, lap %d\n" % (machine, lap)
            append(tmp_path / machine.decode(), line)
            shown += line
            version = LogWriter(world.server, LOG, tmp_path / machine.decode()).publish()
            assert log_bytes(world, version) == shown
    assert len(version.earlier) == 1
    assert len(part_rows(world)) == len(version.parts)


def test_files_of_one_log_do_not_replace_each_other(world: BlobWorld, tmp_path: Path) -> None:
    for name in ("task", "trigger"):
        (tmp_path / name).write_text(name)
        LogWriter(world.server, LOG, tmp_path / name, file_name=name).publish()
    reader = LogReader(world.server, LOG)
    assert [version.file_name for version in reader.versions()] == ["task", "trigger"]
    assert [log_text(reader, name) for name in ("task", "trigger")] == ["task", "trigger"]


def test_a_log_lapses_and_is_swept(world: BlobWorld, file: Path) -> None:
    writer = LogWriter(world.server, LOG, file)
    append(file, b"first\n")
    writer.publish()
    world.clock.sleep(KEPT_S / 2)
    append(file, b"second\n")
    writer.publish()
    writer.renew()
    world.clock.sleep(KEPT_S - 1.0)
    world.server.sweep(dry_run=False)
    assert log_text(LogReader(world.server, LOG)) == "first\nsecond\n"
    world.clock.sleep(2.0)
    world.server.sweep(dry_run=False)
    world.clock.sleep(world.server.stores.retention_s)
    world.server.sweep(dry_run=False)
    assert rows(world) == []


def test_the_log_of_a_job_is_deleted_with_the_job(world: BlobWorld, file: Path) -> None:
    log = Log(job_id="sales", name="driver.log")
    append(file, b"first\n")
    LogWriter(world.server, log, file, lapse_s=None).publish()
    assert log_text(LogReader(world.server, log)) == "first\n"
    world.server.finish("sales")
    assert LogReader(world.server, log).versions() == []


def test_a_character_split_over_two_parts_is_decoded_and_an_incomplete_one_is_not_shown(
    world: BlobWorld, file: Path
) -> None:
    writer = LogWriter(world.server, LOG, file)
    letter = "é".encode()
    append(file, b"caf" + letter[:1])
    writer.publish()
    reader = LogReader(world.server, LOG)
    assert list(lines_of(reader.read(*reader.versions()))) == ["caf"]
    append(file, letter[1:])
    writer.publish()
    assert list(lines_of(reader.read(*reader.versions()))) == ["café"]


@settings(max_examples=10, deadline=None)
@given(
    pieces=st.lists(st.binary(max_size=40), max_size=50),
    cut=st.tuples(st.integers(0, 900), st.integers(0, 900)),
)
def test_every_range_of_every_log_equals_that_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], cut: tuple[int, int]
) -> None:
    root = tmp_path_factory.mktemp("log")
    file = root / "log"
    file.touch()
    with blob_world(root, with_ha=False) as world:
        writer = LogWriter(world.server, LOG, file)
        for piece in pieces:
            append(file, piece)
            writer.publish()
        read = b"".join(LogReader(world.server, LOG).read(writer.version, *cut))
        assert read == file.read_bytes()[cut[0] : cut[1]]


def test_a_log_is_published_and_read_over_http(world: BlobWorld, file: Path) -> None:
    with served(world.server) as url, client_of(url) as client:
        writer = LogWriter(client, LOG, file)
        for _ in range(MERGED + 1):
            append(file, b"line\n")
            writer.publish()
        assert LogReader(client, LOG).versions() == [writer.version]
        assert log_text(LogReader(client, LOG)) == "line\n" * (MERGED + 1)
    assert len(rows(world)) == 3


def test_a_version_that_names_more_bytes_than_its_parts_have_raises_an_error(
    world: BlobWorld, file: Path
) -> None:
    append(file, b"first\n")
    version = LogWriter(world.server, LOG, file).publish()
    longer = replace(version, parts=tuple(replace(part, size_bytes=7) for part in version.parts))
    with pytest.raises(CorruptBlobError, match="byte 6"):
        b"".join(islice(LogReader(world.server, LOG).read(longer), 3))
