"""The row count of a staged file is reported only if the file states it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from lockgate.storage_core.errors import MalformedRecordError
from lockgate.workers import task_commit as rows
from lockgate.workers.task_commit import count_rows

TABLE = pa.table({"flight": [1, 2, 3]})


def test_parquet_and_orc_state_their_rows(tmp_path: Path) -> None:
    parquet.write_table(TABLE, tmp_path / "a.snappy.parquet")
    orc.write_table(TABLE, tmp_path / "a.zlib.orc")

    assert count_rows(tmp_path / "a.snappy.parquet") == 3
    assert count_rows(tmp_path / "a.zlib.orc") == 3


@pytest.mark.parametrize("ending", ["jsonl", "JSON"])
def test_json_lines_are_counted_with_or_without_a_final_line_break(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"part-0.{ending}"
    for text, expected in (
        ('{"a": 1}\n{"a": 2}\n', 2),
        ('{"a": 1}\n{"a": 2}', 2),
        ('{"a": 1}', 1),
        ('{"a": 1}\n', 1),
        ("", 0),
    ):
        path.write_text(text)
        assert count_rows(path) == expected, text


def test_compressed_json_lines_are_counted(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "part-0.json.gz", "wt") as file:
        file.write('{"a": 1}\n' * 70)

    assert count_rows(tmp_path / "part-0.json.gz") == 70


def test_json_lines_are_counted_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK_BYTES", 16)
    (tmp_path / "a.json").write_text('{"a": 1}\n' * 100)

    assert count_rows(tmp_path / "a.json") == 100


@pytest.mark.parametrize("text", ["[\n{}\n]\n", '{\n"a": 1}\n'])
def test_a_json_file_of_one_document_has_an_unknown_row_count(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)

    assert count_rows(tmp_path / "a.json") is None


@pytest.mark.parametrize("name", ["a.csv", "a", "a.json.zst"])
def test_a_row_count_that_would_be_a_guess_is_unknown(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a,b\n1,2\n")

    assert count_rows(tmp_path / name) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b""),
        ("a.parquet", b"PAR1"),
        ("a.orc", b"ORC"),
        ("a.json.gz", gzip.compress(b'{"a": 1}\n' * 50, mtime=0)[:-10]),
    ],
)
def test_a_file_that_contradicts_its_extension_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(MalformedRecordError, match=r"nothing of it was uploaded; stage the data again"):
        count_rows(tmp_path / name)
