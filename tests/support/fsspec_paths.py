"""Paths and writers shared by the tests of the fsspec file system."""

from __future__ import annotations

from typing import BinaryIO

from lockgate.storage_core.commit.job import Job


def root_of(job: Job, task: str = "part-0") -> str:
    """Return the directory of a task, as a process that has only the ids writes it."""
    return f"lockgate://{job.destination.removeprefix('file://')}/__magic_job-{job.job_id}/{task}/__base"


def write_half(file: BinaryIO) -> None:
    """Fail in the middle of writing a file."""
    file.write(b"half")
    raise RuntimeError("boom")
