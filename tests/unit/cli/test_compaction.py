"""Tests of `lockgate compact` and `lockgate destinations report`."""

from __future__ import annotations

import pytest

from lockgate import open_job
from lockgate.storage_core.cli.render import byte_count
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, document
from tests.support.compaction.tables import numbers


def publish(destination: str, settings: Settings, name: str, *paths: str) -> None:
    with open_job(destination, name, settings=settings) as job:
        with job.attempt("task") as attempt:
            for path in paths:
                with attempt.open(path) as file:
                    file.write(numbers(1))
        job.commit()


@pytest.fixture
def table(destination: str, settings: Settings) -> str:
    """Return a destination with small files in three partitions, and some below them."""
    publish(destination, settings, "one", "day=1/a.parquet", "day=1/x/b.parquet", "day=2/c.parquet")
    publish(destination, settings, "two", "day=1/d.parquet", "day=10/e.parquet", "root.parquet", "a.parquet")
    return destination


def test_a_report_counts_the_files_of_each_folder_and_who_wrote_them(run: Run, table: str) -> None:
    report = document(run("destinations", "report", table, "--target", "1KiB", "--json"))
    size = len(numbers(1))
    found = {
        row["folder"]: (row["files"], row["small"], row["size"], row["jobs"]) for row in report["folders"]
    }
    small = size < 1024
    assert found == {
        "day=1": (3, 3 * small, 3 * size, 2),
        "day=2": (1, small, size, 1),
        "day=10": (1, small, size, 1),
        "": (2, 2 * small, 2 * size, 1),
    }
    assert report["total"]["files"] == report["histogram"]["below 64.0 KiB"] == 7
    assert dict(report["writers"]) == {"one-g1": 3, "two-g1": 4}
    text = run("destinations", "report", table).stdout
    assert "7 files" in text
    assert "two-g1 (4)" in text


def test_a_report_goes_on_after_a_page(run: Run, table: str) -> None:
    first = document(run("destinations", "report", table, "--limit", "2", "--json"))
    assert [row["folder"] for row in first["folders"]] == ["day=1", "day=10"]
    rest = document(run("destinations", "report", table, "--after", first["after"], "--json"))
    assert [(row["folder"], row["files"]) for row in rest["folders"]] == [("day=2", 1), ("", 1)]
    assert "--after 'day=10'" in run("destinations", "report", table, "--limit", "2").stdout


def test_compact_shows_what_it_would_merge_then_merges_it(run: Run, table: str) -> None:
    rehearsal = run("compact", table, "--dry-run")
    assert "7 live files before, 4 after; a dry run: nothing was changed" in rehearsal.stdout
    assert len(document(run("manifest", table, "--json"))["files"]) == 7
    done = run("compact", table, "--partition", "day=1", "--name", "nightly")
    assert "job nightly-g1, turn 3: 3 live files before, 1 after" in done.stdout
    assert "merge: 1 of 1" in done.stderr
    receipt = document(run("compact", table, "--json"))["receipt"]
    assert (receipt["mode"], receipt["files"], receipt["removed_files"]) == ("compact", 1, 2)
    assert "nothing to merge" in run("compact", table).stdout
    assert " compact " in run("jobs", "list", table).stdout


def test_bad_input_of_a_compaction_is_named(run: Run, table: str, destination: str) -> None:
    assert "there are day=1, day=10, day=2" in run("compact", table, "--partition", "day=3").stderr
    for arguments in (["--target", "many"], ["--partition", "day=3"], ["--target", "0"]):
        assert run("compact", table, *arguments).exit_code == 2
    assert run("compact", f"{destination}-typo").exit_code == 15
    assert run("destinations", "report", f"{destination}-typo").exit_code == 15


@pytest.mark.parametrize(
    ("text", "size"), [("256MiB", 256 * 1024**2), ("64 k", 65536), ("1.5GiB", 3 * 512 * 1024**2), ("10", 10)]
)
def test_a_size_has_a_unit(text: str, size: int) -> None:
    assert byte_count(text) == size
    with pytest.raises(InvalidInputError, match="is not a size"):
        byte_count(f"{text}x")
