"""Route of the jobs of an Airflow DAG run or task."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BeforeValidator

from lockgate.plugins.web.facts.job_index import run_page
from lockgate.plugins.web.models.jobs import JobRow
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.paging import DEFAULT_LIMIT, After, Limit
from lockgate.plugins.web.request_reads import ReadsOfRequest
from lockgate.storage_core.commit.registry.job_lists import Task

router = APIRouter(prefix="/api/v1/runs", tags=["jobs"])

Name = Annotated[str, Query(max_length=250)]


def _unmapped(text: object) -> object:
    """Return -1 for what Airflow sends for an unmapped task: it leaves its placeholder as it is."""
    return -1 if text in {"", "{MAP_INDEX}"} else text


MapIndex = Annotated[int | None, BeforeValidator(_unmapped), Query(ge=-1, le=2**31)]


@router.get("")
def runs(  # noqa: PLR0917 - each is a query parameter
    reads: ReadsOfRequest,
    dag_id: Name,
    run_id: Name,
    task_id: Annotated[str | None, Query(max_length=250)] = None,
    map_index: MapIndex = None,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[JobRow]:
    """List the jobs that a DAG run, one of its tasks, or one mapped task set up."""
    return run_page(reads, Task(dag_id, run_id, task_id, map_index), after, limit)
