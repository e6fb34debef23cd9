"""Logs are deleted with their last reference, other blobs are staged; a publisher's death loses no log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.blobs.logs.log_reader import LogReader
from lockgate.storage_core.blobs.logs.log_versions import MERGED, Log
from lockgate.storage_core.blobs.logs.log_writer import KEPT_S, LogWriter
from lockgate.storage_core.blobs.server import blob_server as server
from lockgate.storage_core.errors import StoreUnavailableError
from tests.support.blobs.log_text import log_text
from tests.support.blobs.server import BlobWorld, blob_world, key_of

pytestmark = pytest.mark.slow

LOG = Log(name="log")

CALLS = 9
"""A publication makes fewer calls, except for the merged parts, which are dropped one by one."""


def test_a_log_is_deleted_at_once_with_its_last_reference(world: BlobWorld) -> None:
    blob = world.server.put(b"line\n", guarantee="recreatable", use="log", owners=["viewer:1", "viewer:2"])
    world.server.drop(*key_of(blob), "viewer:1")
    assert world.server.get(*key_of(blob)) == b"line\n"
    world.server.drop(*key_of(blob), "viewer:2")
    assert world.row(blob) is None
    assert not world.is_local(blob)
    world.server.drop(*key_of(blob), "viewer:2")


def test_a_log_is_deleted_at_once_with_its_owner(world: BlobWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAGE", 3)
    logs = [
        world.server.put(b"line\n", guarantee="recreatable", use="log", owners=["viewer:1"]) for _ in range(3)
    ]
    message = world.server.put(b"m", guarantee="recreatable", use="message", owners=["viewer:1"])
    assert world.server.drop_owner("viewer:1") == 4
    assert [world.row(blob) for blob in logs] == [None] * 3
    assert world.staged_s(message) == world.clock.now_s()


@pytest.mark.parametrize(("use", "guarantee"), [("message", "recreatable"), ("log", "ha")])
def test_blobs_other_than_recreatable_logs_are_staged(world: BlobWorld, use: Any, guarantee: Any) -> None:
    blob = world.server.put(b"bytes", guarantee=guarantee, use=use, owners=["viewer:1"])
    world.server.drop(*key_of(blob), "viewer:1")
    assert world.staged_s(blob) == world.clock.now_s()
    assert world.is_local(blob)


def test_a_log_that_cannot_be_deleted_at_once_is_left_to_the_sweep(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = world.server.put(b"line\n", guarantee="recreatable", use="log", owners=["viewer:1"])

    def refused(*_: object) -> None:
        raise StoreUnavailableError("the disk is read-only")

    with monkeypatch.context() as patch:
        patch.setattr(world.server.stores.local, "delete", refused)
        world.server.drop(*key_of(blob), "viewer:1")
    assert world.is_local(blob)
    world.server.sweep(dry_run=False)
    assert world.row(blob) is None
    assert not world.is_local(blob)


class PublisherDiedError(BaseException):
    """The publisher's process ended at this call."""


class DyingBlobs:
    """A blob server whose caller dies before or after its n-th call.

    Args:
        world: World of the server.
        at: Number of the call, from 0.
        after: Whether that call still has its effect.
    """

    def __init__(self, world: BlobWorld, at: int, *, after: bool) -> None:
        self._server = world.server
        self._left = at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._server, name)

        def called(*args: Any, **options: Any) -> Any:
            if self._left == 0 and not self._after:
                raise PublisherDiedError
            result = call(*args, **options)
            if self._left == 0:
                raise PublisherDiedError
            self._left -= 1
            return result

        return called


@pytest.mark.parametrize(("lines", "after"), [(1, True), (MERGED - 1, False)])
def test_a_publisher_that_dies_at_any_call_loses_nothing(tmp_path: Path, lines: int, after: bool) -> None:
    file = tmp_path / "log"
    for at in range(CALLS):
        root = tmp_path / str(at)
        root.mkdir()
        file.write_bytes(b"")
        with blob_world(root, with_ha=False) as world:
            first = LogWriter(world.server, LOG, file)
            for _ in range(lines):
                _append(file)
                first.publish()
            shown = log_text(LogReader(world.server, LOG))
            _append(file)
            is_dead = _dies(world, file, at, after=after)
            assert log_text(LogReader(world.server, LOG)) in {shown, file.read_text()}
            _append(file)
            LogWriter(world.server, LOG, file).publish()
            assert log_text(LogReader(world.server, LOG)) == file.read_text()
            assert len(world.server.references(owner=LOG.owner)) == 1
            world.clock.sleep(KEPT_S)
            world.server.sweep(dry_run=False)
            world.clock.sleep(world.server.stores.retention_s)
            world.server.sweep(dry_run=False)
            assert list(world.server.stores.local.jobs()) == []
        if not is_dead:
            return
    assert lines > 1, "more calls than a publication has"


def _append(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"line\n")


def _dies(world: BlobWorld, file: Path, at: int, *, after: bool) -> bool:
    blobs: Any = DyingBlobs(world, at, after=after)
    try:
        LogWriter(blobs, LOG, file).publish()
    except PublisherDiedError:
        return True
    return False
