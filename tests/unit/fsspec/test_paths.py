"""Parsing of paths below a magic directory in the fsspec file system."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.fsspec.paths import (
    check_path,
    destination_at,
    fs_path,
    magic_path,
    strip_protocol,
)

TASK = "/lake/sales/__magic_job-day-g1/part-0"


def target(path: str) -> str:
    found = magic_path(strip_protocol(path))
    assert found is not None
    return found.target


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("lockgate:///lake/sales/", "/lake/sales"),
        ("file:///lake/sales", "/lake/sales"),
        ("/lake/sales", "/lake/sales"),
        ("lockgate://s3/lake/sales", "s3/lake/sales"),
        ("lockgate://s3://lake/sales", "s3/lake/sales"),
        ("s3://lake/sales/", "s3/lake/sales"),
        ("s3/lake/sales", "s3/lake/sales"),
        ("lockgate:///", ""),
    ],
)
def test_every_spelling_of_a_path_is_normalised(url: str, path: str) -> None:
    assert strip_protocol(url) == path
    assert strip_protocol(path) == path


@pytest.mark.parametrize("destination", ["file:///lake/sales", "s3://lake/sales", "s3://lake", "file:///"])
def test_a_destination_and_its_path_convert_into_each_other(destination: str) -> None:
    assert destination_at(fs_path(destination)) == destination


@pytest.mark.parametrize("path", ["lake/sales", "s3", "s3/", "/lake//sales", "/lake/../sales", "s3/lake/./a"])
def test_a_relative_path_or_one_with_dot_segments_is_refused_with_the_remedy(path: str) -> None:
    with pytest.raises(InvalidInputError, match=r"write lockgate:///directory|write it without"):
        check_path(path)


@pytest.mark.parametrize("path", ["s3/B/x", "s3//x", "s3/"])
def test_a_path_on_s3_needs_a_bucket(path: str) -> None:
    with pytest.raises(InvalidInputError):
        destination_at(path)


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("__base/a.parquet", "a.parquet"),
        ("__base/day=1/a.parquet", "day=1/a.parquet"),
        ("attempt-7/__base/day=1/a.parquet", "day=1/a.parquet"),
        ("__base/day=1/__base/a.parquet", "a.parquet"),
        ("__base/__base/day=1/a.parquet", "day=1/a.parquet"),
        ("a.parquet", "a.parquet"),
        ("day=1/a.parquet", "a.parquet"),
        ("__base/day=a%2Fb/name with spaces é=1.parquet", "day=a%2Fb/name with spaces é=1.parquet"),
        ("__base/__magic/a", "__magic/a"),
    ],
)
def test_the_target_begins_after_the_last_base_or_is_only_the_file_name(below: str, expected: str) -> None:
    assert target(f"{TASK}/{below}") == expected


def test_a_base_before_the_magic_directory_belongs_to_the_destination() -> None:
    found = magic_path("/lake/__base/sales/__magic_job-day-g1/part-0/__base/a")
    assert found is not None
    assert (found.destination, found.target) == ("file:///lake/__base/sales", "a")


def test_the_root_and_a_whole_bucket_can_be_destinations() -> None:
    local, bucket = magic_path("/__magic_job-day-g1/t/a"), magic_path("s3/lake/__magic_job-day-g1/t/a")
    assert local is not None
    assert bucket is not None
    assert (local.destination, bucket.destination) == ("file:///", "s3://lake")


def test_a_path_without_a_child_names_the_jobs_or_the_tasks_directory() -> None:
    job, task = magic_path("/lake/__magic_job-day-g1"), magic_path("/lake/__magic_job-day-g1/part-0")
    assert job is not None
    assert task is not None
    assert (job.task_id, job.below) == (None, ())
    assert (task.task_id, task.below) == ("part-0", ())


@pytest.mark.parametrize("path", [TASK, f"{TASK}/__base", f"{TASK}/x/__base"])
def test_a_directory_of_the_protocol_is_not_a_file(path: str) -> None:
    with pytest.raises(InvalidInputError, match="names a directory, not a file; add a file's name"):
        target(path)


@pytest.mark.parametrize("path", ["/lake/sales/a", "/lake/__magic/a", "/lake/magic_job-x-g1/a", ""])
def test_any_other_path_is_not_magic(path: str) -> None:
    assert magic_path(path) is None


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/lake/__magic_job-/part-0/a", "is not a job id"),
        ("/lake/__magic_job-day/part-0/a", "is not a job id"),
        ("/lake/__magic_job-../part-0/a", "is not a job id"),
        ("/lake/__magic_job-day-g1/part 0/a", "task 'part 0'"),
        ("/lake/__magic_job-day-g1/__base/a", "task '__base'"),
        ("/lake/__magic_job-day-g1/../a", "could leave the destination"),
        ("/lake/__magic_job-day-g1/part-0/__base/../../../a", "could leave the destination"),
        ("/lake/__magic_job-day-g1/part-0/__base//a", "could leave the destination"),
        ("/lake/__magic_job-day-g1//a", "could leave the destination"),
        ("/lake/__magic_job-day-g1/part-0/a\\b", "backslash"),
        ("/lake/__magic_job-day-g1/part-0/a\nb", "control character"),
        ("/lake/__magic_job-day-g1/part-0/e\u0301", "NFC"),
        ("/lake/../etc/__magic_job-day-g1/part-0/a", "`..`"),
        ("lake/__magic_job-day-g1/part-0/a", "write lockgate:///directory"),
        ("s3/__magic_job-day-g1/part-0/a", "write lockgate:///directory"),
        ("/lake/__magic_job-day-g1/part-0/__magic_job-day-g2/a", "is below another"),
    ],
)
def test_an_invalid_untrusted_path_is_refused_by_name(path: str, fault: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        magic_path(path)
    assert fault in str(refused.value)
    assert repr(path)[1:8] in str(refused.value)


@given(st.text(max_size=60))
def test_no_text_escapes_its_destination_or_raises_anything_else(text: str) -> None:
    try:
        found = magic_path(strip_protocol(f"/lake/__magic_job-day-g1/part-0/__base/{text}"))
        below = None if found is None else found.target
    except InvalidInputError:
        return
    assert below is not None
    assert not {"", ".", ".."} & set(below.split("/"))
