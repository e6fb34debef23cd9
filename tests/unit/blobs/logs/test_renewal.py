"""The log of a long-running task does not lapse while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.blobs.logs.log_reader import LogReader
from lockgate.storage_core.blobs.logs.log_writer import LogWriter
from lockgate.storage_core.errors import StoreUnavailableError
from tests.support.blobs.log_text import log_text
from tests.support.blobs.server import BlobWorld
from tests.support.blobs.task_logs import LOG, append, file, world

__all__ = ["file", "world"]

LAPSE_S = 7_200.0


def writer_of(world: BlobWorld, file: Path) -> LogWriter:
    return LogWriter(world.server, LOG, file, lapse_s=LAPSE_S, clock=world.clock)


def later(world: BlobWorld) -> None:
    world.clock.sleep(LAPSE_S / 4)
    world.server.sweep(dry_run=False)


def lapse(world: BlobWorld) -> None:
    """Sweep after the lapse time, which deletes everything that was not renewed."""
    world.clock.sleep(LAPSE_S + 1.0)
    for _ in range(3):
        world.server.sweep(dry_run=False)
        world.clock.sleep(world.server.holdings.retention_s + 1.0)


@pytest.mark.parametrize("grows", [True, False])
def test_a_log_does_not_lapse_while_it_is_published(world: BlobWorld, file: Path, grows: bool) -> None:
    writer = writer_of(world, file)
    for _ in range(12):
        append(file, b"more\n" if grows else b"")
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


def test_a_failed_renewal_is_repeated(world: BlobWorld, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(world, file)
    writer.publish()
    for _ in range(3):
        later(world)

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(world.server, "refer", away)
        with pytest.raises(StoreUnavailableError):
            writer.publish()
    writer.publish()
    for _ in range(3):
        later(world)
    assert log_text(LogReader(world.server, LOG)) == "first\n"


def test_a_missing_part_is_reported_and_the_other_parts_are_renewed(
    world: BlobWorld, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_of(world, file)
    writer.publish()
    lapse(world)
    append(file, b"more\n")
    version = writer.publish()
    writer.renew()
    assert "is gone" in caplog.text
    assert b"".join(LogReader(world.server, LOG).read(version, 6)) == b"more\n"
