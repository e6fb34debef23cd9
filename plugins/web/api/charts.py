"""Route of charts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lockgate.plugins.web.facts.charts import chart
from lockgate.plugins.web.models.charts import ChartName, Series
from lockgate.plugins.web.request_reads import ReadsOfRequest

router = APIRouter(prefix="/api/v1/charts", tags=["charts"])


@router.get("/{name}")
def charts(
    reads: ReadsOfRequest,
    name: ChartName,
    days: Annotated[int, Query(ge=1, le=90, description="Number of days, today included.")] = 30,
    destination: Annotated[str | None, Query(max_length=2_048, description="URL of a destination.")] = None,
) -> Series:
    """Return a series with one value for each day in UTC; None where nothing is recorded."""
    return chart(reads, name, days, destination)
