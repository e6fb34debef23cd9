"""Uploads of every size to S3: around one part, and more than 5 GiB, where bytes are only counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.commit.uploads import pending_file_writer as pending_file
from lockgate.storage_core.commit.uploads.pending_file_writer import PARTS_A_SIZE
from lockgate.storage_core.settings import MIB
from tests.support.fake_s3 import Options
from tests.support.s3.destination import S3World, s3_world

pytestmark = pytest.mark.slow

PART = 5 * MIB
GIB = 1024 * MIB


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with s3_world(tmp_path, monkeypatch, part_bytes=PART, s3_max_attempts=3) as world:
        yield world


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART])
def test_a_file_of_any_size_is_complete_when_its_job_is_committed(s3: S3World, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    s3.driver.run("job", {"a.csv": data})

    assert s3.other.visible() == {"a.csv": data}
    assert list(s3.other.live().values()) == [size]
    assert s3.fake.requests["UploadPart"] - _parts_of_the_probe(s3) == max(1, -(-size // PART))


def test_parts_double_in_size_from_a_number_on(s3: S3World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_file, "PARTS_A_SIZE", 2)
    with s3.driver.open_job("job") as job:
        with job.attempt("task") as attempt, attempt.open("a.bin") as file:
            file.write(bytes(7 * PART))
        (upload,) = s3.fake.snapshot().uploads.values()
    assert [upload.parts[number].size // PART for number in sorted(upload.parts)] == [1, 1, 2, 2, 1]


@pytest.mark.soak
def test_a_file_of_more_than_5_gib_uses_parts_that_double_in_size(s3: S3World) -> None:
    s3.driver.run("first", {"first.csv": b"1"})
    s3.fake.behave(Options(keeps_parts=False))
    chunk = bytes(2 * PART)
    with s3.driver.open_job("large") as job:
        s3.fake.forget()
        with job.attempt("task") as attempt, attempt.open("large.bin") as file:
            while file.tell() <= 5 * GIB:
                file.write(chunk)
            size = file.tell()
        sent = s3.fake.requests["UploadPart"]
        (upload,) = s3.fake.snapshot().uploads.values()
        job.commit()

    sizes = [upload.parts[number].size for number in sorted(upload.parts)]
    assert size == sum(sizes) > 5 * GIB
    assert set(sizes[:PARTS_A_SIZE]) == {PART}
    assert set(sizes[PARTS_A_SIZE:-1]) == {2 * PART}
    assert len(sizes) == sent < PARTS_A_SIZE + 100
    assert max(s3.other.live().values()) == size


def _parts_of_the_probe(s3: S3World) -> int:
    return sum(seen.operation == "UploadPart" and "/probe/" in seen.key for seen in s3.fake.seen)
