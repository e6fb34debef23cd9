"""The frozen listing of a stage and its division into tasks; needs no Spark."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.expected_tasks import StagedFile
from lockgate.storage_core.commit.staged_files import group_into_tasks, list_staged
from lockgate.storage_core.errors import ConflictError, InvalidInputError


def _stage(root: Path, files: dict[str, int], *, finished: bool = True) -> Path:
    for path, size in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x" * size)
    if finished:
        (root / "_SUCCESS").touch()
    return root


def test_a_listing_has_the_files_a_reader_would_see_with_sizes_by_path(tmp_path: Path) -> None:
    stage = _stage(
        tmp_path,
        {
            "b.parquet": 3,
            "day=1/a.parquet": 5,
            "_a=1/kept.parquet": 1,
            ".b.parquet.crc": 8,
            "_temporary/0/part": 9,
            "day=1/.a.crc": 8,
            "empty.csv": 0,
        },
    )
    assert [(file.path, file.size) for file in list_staged(stage)] == [
        ("_a=1/kept.parquet", 1),
        ("b.parquet", 3),
        ("day=1/a.parquet", 5),
        ("empty.csv", 0),
    ]


def test_a_stage_without_the_writers_marker_is_incomplete(tmp_path: Path) -> None:
    stage = _stage(tmp_path, {"a.parquet": 1}, finished=False)
    with pytest.raises(ConflictError, match="no _SUCCESS"):
        list_staged(stage)
    assert [file.path for file in list_staged(stage, marker=None)] == ["a.parquet"]


def test_a_stage_that_this_machine_cannot_access_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="disk that workers see"):
        list_staged(tmp_path / "elsewhere")


@pytest.mark.parametrize("target", ["file", "folder", "nowhere"])
def test_a_link_in_a_stage_is_refused(tmp_path: Path, target: str) -> None:
    stage = _stage(tmp_path / "stage", {"a.parquet": 1})
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (stage / "link").symlink_to(tmp_path / target)
    with pytest.raises(InvalidInputError, match="link is not a regular file"):
        list_staged(stage)


def test_groups_are_bounded_by_bytes_and_files_and_a_large_file_is_alone() -> None:
    sizes = [40, 40, 40, 500, 1, 1, 1, 1]
    files = [StagedFile(path=f"f{n}", size=size) for n, size in enumerate(sizes)]
    tasks = group_into_tasks(files, target_bytes=100, max_files=3)
    assert [[file.path for file in task.files] for task in tasks] == [
        ["f0", "f1"], ["f2"], ["f3"], ["f4", "f5", "f6"], ["f7"],
    ]  # fmt: skip
    assert [task.task_id for task in tasks] == [f"staged-{n:05d}" for n in range(5)]


def test_the_same_files_make_the_same_tasks_in_any_order() -> None:
    files = [StagedFile(path=f"day={n % 7}/{n}.parquet", size=n) for n in range(100)]
    shuffled = random.Random(7).sample(files, len(files))
    assert group_into_tasks(shuffled, target_bytes=300) == group_into_tasks(files, target_bytes=300)


def test_a_file_that_was_rewritten_with_equal_size_has_another_digest(tmp_path: Path) -> None:
    stage = _stage(tmp_path / "stage", {"a.csv": 3})
    os.utime(stage / "a.csv", ns=(1, 1))
    (one,) = group_into_tasks(list_staged(stage, marker=None))
    (stage / "a.csv").write_bytes(b"999")
    (other,) = group_into_tasks(list_staged(stage, marker=None))
    assert [file.size for file in (*one.files, *other.files)] == [3, 3]
    assert one.input_digest != other.input_digest


@pytest.mark.parametrize("limits", [{"target_bytes": 0}, {"max_files": 0}])
def test_limits_below_one_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match="at least 1"):
        group_into_tasks([], **limits)


def test_workers_list_and_group_without_pyspark() -> None:
    code = (
        "import sys, lockgate.storage_core.commit.staged_files; "
        "sys.exit(bool({'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
