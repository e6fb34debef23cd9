"""Appendable files by fsspec: read by pandas and PyArrow, appended, listed, moved and deleted."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from fsspec.core import OpenFile
from pyarrow.fs import FSSpecHandler, PyFileSystem

from lockgate.fsspec import AppendableFileSystem
from lockgate.storage_core.errors import InvalidInputError, LeaseHeldError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.settings import load_settings
from tests.support.journal.checkpoints import JournalWorld

ROWS = pd.DataFrame({"id": range(1000), "name": [f"name {number}" for number in range(1000)]})


@pytest.fixture
def fs(journals: JournalWorld, tmp_path: Path) -> Iterator[AppendableFileSystem]:
    journal = journals.open()
    volumes = {one.id: one for one in map(DirectoryVolume, (tmp_path / "one", tmp_path / "two"))}
    files = Files(journal, volumes, load_settings(), block_bytes=1000)
    yield AppendableFileSystem(files)
    files.close()
    journal.close()


def test_pandas_appends_and_reads_a_csv_file(fs: AppendableFileSystem) -> None:
    fs.mkdir("/logs")
    for first in (0, 500):
        with fs.open("/logs/a.csv", "a" if first else "w") as file:
            ROWS[first : first + 500].to_csv(file, index=False, header=not first)
    with fs.open("/logs/a.csv") as file:
        pd.testing.assert_frame_equal(pd.read_csv(file), ROWS)
    with fs.open("/logs/a.csv", "r") as file:
        assert next(iter(file)) == "id,name\n"


def test_pyarrow_reads_parquet_and_csv_by_path(fs: AppendableFileSystem) -> None:
    table = pa.Table.from_pandas(ROWS, preserve_index=False)
    arrow = PyFileSystem(FSSpecHandler(fs))
    pq.write_table(table, "/a.parquet", filesystem=arrow)
    with arrow.open_output_stream("/a.csv") as file:
        pyarrow.csv.write_csv(table, file)

    assert pq.read_table("/a.parquet", filesystem=arrow).equals(table)
    assert pd.read_parquet("/a.parquet", filesystem=fs).equals(ROWS)
    with arrow.open_input_file("/a.csv") as file:
        assert pyarrow.csv.read_csv(file).to_pylist() == table.to_pylist()
    with arrow.open_append_stream("/a.csv") as file:
        file.write(b'7,"more"\n')
    assert fs.tail("/a.csv", 9) == b'7,"more"\n'


def test_ranges_are_read_and_an_open_file_has_what_was_flushed(fs: AppendableFileSystem) -> None:
    data = bytes(range(256)) * 10
    with fs.open("/a", "xb") as file:
        file.write(data)
        file.flush()
        assert fs.info("/a")["size"] == fs.size("/a") == len(data)
        assert fs.info("/a")["is_open"]
        with pytest.raises(LeaseHeldError):
            fs.open("/a", "ab")
        for start, end in ((None, None), (5, 10), (990, 1010), (-5, None), (None, -3), (-7, -2), (9, 3)):
            assert fs.cat_file("/a", start, end) == data[start:end]
        with fs.open("/a") as reader:
            reader.seek(-3, 2)
            assert reader.read() == data[-3:]
            reader.seek(999)
            assert reader.read(1200) == data[999:2199]
    assert not fs.info("/a")["is_open"]
    fs.pipe_file("/b", b"piped")
    assert fs.cat("/b") == b"piped"


def test_directories_are_listed_walked_moved_and_deleted(fs: AppendableFileSystem) -> None:
    fs.makedirs("/x/y")
    fs.pipe_file("/x/y/a", b"a")
    fs.pipe_file("/x/b", b"bb")
    assert fs.ls("/", detail=False) == ["/x"]
    assert [(info["name"], info["size"], info["type"]) for info in fs.ls("lockgate-files:///x")] == [
        ("/x/b", 2, "file"),
        ("/x/y", 0, "directory"),
    ]
    assert fs.find("/") == ["/x/b", "/x/y/a"]
    fs.mv("/x/y", "/z")
    fs.mv("/x/b", "/")
    fs.mv("/b", "/x")
    assert fs.du("/") == 3
    fs.cp_file("/z/a", "/z/c")
    assert fs.glob("/z/*") == ["/z/a", "/z/c"]
    with pytest.raises(OSError, match="not empty"):
        fs.rm("/z")
    fs.rm("/z", recursive=True)
    assert fs.find("/") == ["/x/b"]


def test_bad_calls_are_refused_and_nothing_is_changed(fs: AppendableFileSystem) -> None:
    fs.pipe_file("/a", b"a")
    with pytest.raises(FileExistsError, match="append to it"):
        fs.open("/a", "wb")
    with pytest.raises(FileNotFoundError):
        fs.open("/missing/a", "ab")
    with pytest.raises(FileNotFoundError):
        fs.cat("/missing")
    with pytest.raises(FileNotFoundError):
        fs.rm("/missing")
    with pytest.raises(InvalidInputError, match="use rb, ab, wb or xb"):
        fs.open("/a", "r+b")
    with pytest.raises(IsADirectoryError):
        fs.open("/")
    assert fs.cat("/a") == b"a"


def test_files_are_touched_copied_and_deleted_by_pattern(fs: AppendableFileSystem) -> None:
    fs.makedirs("/logs/day")
    fs.pipe("/logs/day/a.log", b"one")
    fs.touch("/logs/b.log")
    fs.touch("/logs/day/a.log", truncate=False)
    fs.cp("/logs", "/copy", recursive=True)
    assert {path: fs.cat(path) for path in fs.find("/copy")} == {
        "/copy/day/a.log": b"one",
        "/copy/b.log": b"",
    }
    fs.touch("/logs/day/a.log")
    assert fs.cat("/logs/day/a.log") == b""
    fs.pipe("/copy/a1.log", b"another")
    fs.pipe("/copy/a[1].log", b"a name, no pattern")
    fs.rm("/copy/a[1].log")
    assert fs.cat("/copy/a1.log") == b"another"
    fs.rm(["/copy/*.log", "/copy/day/?.log"])
    assert fs.find("/copy") == []


def test_what_would_lose_bytes_is_refused(fs: AppendableFileSystem) -> None:
    fs.pipe("/a.log", b"one")
    with pytest.raises(NotADirectoryError):
        fs.rmdir("/a.log")
    with pytest.raises(InvalidInputError, match=r"use fsspec\.open"):
        fs.open("/a.gz", "wb", compression="gzip")
    with pytest.raises(InvalidInputError, match="outside of a transaction"), fs.transaction:
        fs.open("/b.log", "wb")
    with pytest.raises(FileNotFoundError):
        fs.mv("/none", "/b.log")
    fs.pipe("/c.log", b"two")
    with pytest.raises(FileExistsError):
        fs.mv("/a.log", "/c.log")
    fs.mkdir("/d")
    with pytest.raises(OSError, match="inside it"):
        fs.mv("/d", "/d/e")
    assert fs.find("/") == ["/a.log", "/c.log"]
    assert fs.cat("/a.log") == b"one"
    with fs.open("/plain.log", "wb", compression="infer") as file:
        file.write(b"not packed")
    assert fs.cat("/plain.log") == b"not packed"
    with OpenFile(fs, "/a.gz", "wb", compression="gzip") as file:
        file.write(b"packed")
    with fs.open("/a.gz", compression="gzip") as file:
        assert file.read() == b"packed"


def test_libraries_open_files_by_url_that_keep_their_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path))
    ROWS[:500].to_csv("lockgate-files:///a.csv", index=False)
    ROWS[500:].to_csv("lockgate-files:///a.csv", index=False, header=False, mode="a")
    pd.testing.assert_frame_equal(pd.read_csv("lockgate-files:///a.csv"), ROWS)
    ROWS.to_parquet("lockgate-files:///a.parquet")
    assert pq.read_table("fsspec+lockgate-files:///a.parquet").num_rows == 1000

    log = fsspec.open("lockgate-files:///a.log", "wb").open()
    gc.collect()
    log.write(b"one")
    log.close()
    fs = AppendableFileSystem()
    assert fs.cat("/a.log") == b"one"
    with pytest.raises(OSError, match="No such file"):
        pl.read_csv("lockgate-files:///a.csv")
    assert pl.read_csv(fs.open("/a.csv")).shape == (1000, 2)
    assert fs.created("/a.csv") < fs.modified("/a.csv") < fs.created("/a.log")
    assert not fs.exists("/a.csv/b")
    fs.close()


def test_the_files_of_the_settings_journal_are_opened_by_the_first_call(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, journal_url=f"sqlite:///{tmp_path}/journal.db")
    fs = AppendableFileSystem(settings=settings)
    fs.pipe_file("/a", b"one")
    fs.close()
    again = AppendableFileSystem(settings=settings)
    assert again.cat("/a") == b"one"
    again.close()
