"""The list of pending files is read while Spark writes it."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from types import SimpleNamespace
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


def test_a_page_of_files_to_upload_ends_with_a_part_so_that_uploads_begin(tmp_path: Path) -> None:
    spool = tmp_path / "files"
    spool.write_text("token\n" + "".join(f"{size}.parquet\t{size}\n" for size in (1, 2, 7, 10, 30, 4)))
    on_s3 = AdoptedFiles(cast("Any", SimpleNamespace(store=None)), spool, 10, tmp_path)
    open_uploads = AdoptedFiles(cast("Any", None), spool, 10)
    sizes = []
    for files in (on_s3, open_uploads):
        files._written.set()
        sizes.append([[int(line.split("\t")[1]) for line in page] for _, page in files._pages()])
    assert sizes == [[[1, 2, 7], [10], [30], [4]], [[1, 2, 7, 10, 30, 4]]]
