"""Helpers that run the command line and prepare jobs in various states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import Result

from lockgate import open_job
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.settings import Settings

Run = Callable[..., Result]


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def write(job: Job, path: str = "day=1/a.csv", task: str = "part-0") -> None:
    with job.attempt(task) as attempt, attempt.open(path) as file:
        file.write(b"a,b\n")


def committed_job(destination: str, settings: Settings, name: str = "sales") -> Job:
    job = open_job(destination, name, settings=settings)
    write(job)
    job.commit()
    return job


def open_written_job(destination: str, settings: Settings, name: str = "sales") -> Job:
    """Return a job whose driver wrote and died: its lease was taken and is no longer renewed."""
    job = open_job(destination, name, settings=settings)
    write(job)
    job.close()
    return job


def lapsed_job(destination: str, settings: Settings, name: str = "sales") -> Job:
    job = open_job(destination, name, settings=settings)
    write(job)
    job.suspend(0)
    return job


def visible(destination: str) -> list[str]:
    root = Path(destination)
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*.csv")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)
    )
