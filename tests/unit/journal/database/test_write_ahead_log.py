"""SQLite's write-ahead log of a journal shrinks after a large transaction."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import text

from lockgate.storage_core.journal.database.database import Database, parse_url
from lockgate.storage_core.journal.database.sqlite_engine import WAL_BYTES


def test_the_write_ahead_log_shrinks_after_a_large_transaction_is_checkpointed(tmp_path: Path) -> None:
    log = tmp_path / "journal.db-wal"
    database = Database(parse_url(f"sqlite:///{tmp_path / 'journal.db'}"))
    try:
        with database.write() as connection:
            connection.execute(text("CREATE TABLE big (content BLOB)"))
            for _ in range(3):
                connection.execute(text(f"INSERT INTO big VALUES (zeroblob({WAL_BYTES}))"))
        assert log.stat().st_size > 3 * WAL_BYTES
        with database.write() as connection:  # this write restarts the log, because it is checkpointed
            connection.execute(text("INSERT INTO big VALUES ('small')"))
        assert log.stat().st_size <= WAL_BYTES
    finally:
        database.close()
