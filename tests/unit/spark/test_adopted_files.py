"""The list of pending files is read while Spark writes it."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any, cast

from lockgate.storage_core.spark.adopted_files import AdoptedFiles


def test_a_line_is_read_when_all_its_bytes_are_written(tmp_path: Path) -> None:
    spool, written = tmp_path / "files", "token\nday=é/a\t1\n".encode()
    spool.write_bytes(written[: written.index(b"\xa9")])  # within a letter, as between two pages of a write

    class SparkWrites(Event):
        def wait(self, timeout: float | None = None) -> bool:
            spool.write_bytes(written)
            self.set()
            return True

    files = AdoptedFiles(cast("Any", None), spool, 1)
    files._written = SparkWrites()
    assert list(files._lines()) == ["token", "day=é/a\t1"]
