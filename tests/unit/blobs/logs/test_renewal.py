"""The log of a long-running task does not lapse while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.blobs.logs.log_reader import LogReader
from lockgate.storage_core.blobs.logs.log_writer import LogWriter
from tests.support.blobs.log_text import log_text
from tests.support.blobs.server import BlobWorld
from tests.support.blobs.task_logs import LOG, append, file

__all__ = ["file"]

LAPSE_S = 7_200.0


def writer_of(world: BlobWorld, file: Path) -> LogWriter:
    return LogWriter(world.server, LOG, file, lapse_s=LAPSE_S, clock=world.clock)


def later(world: BlobWorld) -> None:
    world.clock.sleep(LAPSE_S / 4)
    world.server.sweep(dry_run=False)


def test_a_log_does_not_lapse_while_it_is_published(world: BlobWorld, file: Path) -> None:
    writer = writer_of(world, file)
    for _ in range(8):
        append(file, b"more\n")
        writer.publish()
        later(world)
    assert log_text(LogReader(world.server, LOG)) == file.read_text()


def test_a_writer_renews_the_parts_that_an_earlier_writer_published(world: BlobWorld, file: Path) -> None:
    writer_of(world, file).publish()
    for _ in range(3):
        later(world)
    append(file, b"more\n")
    writer_of(world, file).publish()
    for _ in range(3):
        later(world)
    assert log_text(LogReader(world.server, LOG)) == file.read_text()


def test_nothing_is_renewed_before_half_of_its_time(
    world: BlobWorld, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(world, file)
    writer.publish()
    renewed: list[float] = []
    monkeypatch.setattr(world.server, "refer", lambda *_, **__: renewed.append(world.clock.now_s()))
    began_s = world.clock.now_s()
    for _ in range(4):
        writer.publish()
        later(world)
    assert renewed == [began_s + 0.75 * LAPSE_S] * 2, "the part and the version, once"
