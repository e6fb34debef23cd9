"""Restore a real PostgreSQL journal from a base backup and archived WAL, as the documentation describes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lockgate.storage_core.journal import Stamp
from lockgate.storage_core.journal.checkpoint.restore import restore_in_place
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from lockgate.storage_core.journal.write.head import EPOCH_STEP
from tests.support.journal.checkpoints import JournalWorld, take
from tests.support.postgres import UNSYNCED, Server, free_port, primary

pytestmark = [
    pytest.mark.soak,
    pytest.mark.integration,
    pytest.mark.requires("postgres"),
    pytest.mark.timeout(300),
]


def wait_until(server: Server, question: str, answer: str) -> None:
    """Poll the server until the condition holds; the test's timeout limits the wait."""
    while server.run_sql(question) != answer:
        time.sleep(0.1)


def brought_back(base: Server, archive: Path) -> Server:
    """Start a base backup that replays the archive to its end and begins a new timeline."""
    signal, version = base.root / "data/recovery.signal", base.root / "data/PG_VERSION"
    (base.root / "data/standby.signal").unlink()
    signal.touch()
    owner = version.stat()
    signal.chmod(0o600)
    os.chown(signal, owner.st_uid, owner.st_gid)
    server = Server(base.root, free_port(), {**UNSYNCED, "restore_command": f"'cp {archive}/%f %p'"})
    server.start()
    wait_until(server, "SELECT pg_is_in_recovery()", "False")
    return server


def test_a_journal_restored_from_base_backup_and_wal_issues_no_stamp_twice(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    archive.chmod(0o777)  # the server's user must be able to write to it
    options = {**UNSYNCED, "archive_mode": "on", "archive_command": f"'cp %p {archive}/%f'"}
    with primary(tmp_path / "primary", **options) as server:
        lost = JournalWorld(tmp_path, server.url, "")
        lost.live(1)
        base = server.new_standby(tmp_path / "base")
        base.stop()  # from here on it is a base backup and no longer a standby
        lost.live(2)
        checkpoint = lost.checkpoint()
        segment = server.run_sql("SELECT pg_walfile_name(pg_switch_wal())")
        wait_until(server, f"SELECT last_archived_wal >= '{segment}' FROM pg_stat_archiver", "True")
        lost.live(3)  # never archived, so lost
    server = brought_back(base, archive)
    try:
        came_back = JournalWorld(tmp_path, server.url, "", lost.clock)
        with came_back.open() as journal:
            stamp = restore_in_place(journal, came_back.checkpoints)
        assert (checkpoint.stamp, stamp) == (Stamp(1, 26), Stamp(EPOCH_STEP, 26))
        assert came_back.verify().findings == ()
        with came_back.open() as journal:
            assert leave_safe_mode(journal) == 4
        assert came_back.apply(take("z")) == [Stamp(EPOCH_STEP, 28)]
        assert came_back.verify().findings == ()
    finally:
        server.stop("immediate")
