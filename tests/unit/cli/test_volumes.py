"""Tests of `lockgate volumes add`: a volume in a bucket, used by the commands for files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import ConflictError, InvalidInputError
from tests.support.cli import Run, document
from tests.support.fake_s3 import FakeS3, served


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    fake = FakeS3()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with served(fake) as endpoint:
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", endpoint)
        yield fake


def test_files_are_kept_in_a_bucket_once_it_is_added(run: Run, fake: FakeS3, tmp_path: Path) -> None:
    added = run("volumes", "add", "s3://lake/volume/")
    assert added.exit_code == 0, added.output
    assert run("volumes", "add", "s3://lake/volume").stdout == added.stdout
    (tmp_path / "source").write_bytes(b"one\ntwo\n")
    for length in (8, 16):
        made = run("files", "append", "/a.log", "--create", "--from", str(tmp_path / "source"), "--json")
        assert document(made) == {"path": "/a.log", "length_bytes": length}
    assert run("files", "truncate", "/a.log", "13").exit_code == 0
    assert run("files", "cat", "/a.log").stdout == "one\ntwo\none\nt"
    assert run("files", "fsck", "--verify").exit_code == 0
    (found,) = document(run("volumes", "list", "--json"))
    assert (found["volume"], found["url"]) == (added.stdout.strip(), "s3://lake/volume")
    assert any(key.startswith("volume/segments/") for key in fake.snapshot().objects)


@pytest.mark.parametrize("url", ["ftp://host", "/var/volume", "s3://"])
def test_what_is_no_bucket_is_refused(run: Run, url: str) -> None:
    refused = run("volumes", "add", url)
    assert refused.exit_code == InvalidInputError.exit_code
    assert "s3://bucket/prefix" in refused.output


def test_a_volume_of_another_journal_is_refused(
    run: Run, fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("volumes", "add", "s3://lake/volume").exit_code == 0
    before = fake.snapshot()
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", f"sqlite:///{tmp_path}/other.db")
    refused = run("volumes", "add", "s3://lake/volume")
    assert refused.exit_code == ConflictError.exit_code
    assert "has blocks of the journal" in refused.output
    assert fake.snapshot() == before
