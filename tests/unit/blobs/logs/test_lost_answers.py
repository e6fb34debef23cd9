"""A log is shown whole although the response to its publication was lost or was an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.logs.log_reader import LogReader
from lockgate.storage_core.blobs.logs.log_versions import LogPart, LogVersion, find_versions
from lockgate.storage_core.blobs.logs.log_writer import LogWriter
from lockgate.storage_core.errors import OutcomeUnknownError, StoreUnavailableError
from tests.support.blobs.log_text import log_text
from tests.support.blobs.server import BlobWorld
from tests.support.blobs.task_logs import LOG, append, file

__all__ = ["file"]


def lose_versions(world: BlobWorld, patch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Make the put of each version fail, before or after it takes effect."""
    put = world.server.put

    def lost(source: Any, **options: Any) -> BlobInfo:
        if "version" not in options["name"]:
            return put(source, **options)
        if after:
            put(source, **options)
            raise OutcomeUnknownError("no answer came")
        raise StoreUnavailableError("away")

    patch.setattr(world.server, "put", lost)


def blobs_of(world: BlobWorld) -> int:
    return len(list(world.server.stores.local.blobs("no_job")))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("grown", [b"", b"third\n"])
def test_the_next_publication_replaces_one_that_got_no_response(
    world: BlobWorld, file: Path, monkeypatch: pytest.MonkeyPatch, after: bool, grown: bytes
) -> None:
    writer = LogWriter(world.server, LOG, file)
    writer.publish()
    append(file, b"second\n")
    with monkeypatch.context() as patch:
        lose_versions(world, patch, after=after)
        with pytest.raises((OutcomeUnknownError, StoreUnavailableError)):
            writer.publish()
    append(file, grown)
    version = writer.publish()
    assert log_text(LogReader(world.server, LOG)) == file.read_text()
    assert [one.version for one in find_versions(world.server, LOG)] == [version]
    assert version.number == (2 if after and not grown else 3)
    assert blobs_of(world) == 1 + len(version.parts), "a stray version or part is kept"


def test_the_next_writer_continues_the_longer_of_two_versions_with_one_number_and_drops_the_other(
    world: BlobWorld, file: Path
) -> None:
    longest = LogWriter(world.server, LOG, file).publish()
    for size_bytes in range(5):
        shorter = world.server.put(b"x", owners=[LOG.parts_owner("")], use="log", guarantee="recreatable")
        part = LogPart(blob_key=shorter.blob_key, size_bytes=size_bytes)
        stray: LogVersion = replace(longest, parts=(part,))
        world.server.put(msgspec.json.encode(stray), owners=[LOG.owner], use="log", guarantee="recreatable")
    assert log_text(LogReader(world.server, LOG)) == "first\n"
    assert LogWriter(world.server, LOG, file).publish() == longest
    assert blobs_of(world) == 2
