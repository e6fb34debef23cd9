"""Emit the Asset events of a committed job, and ask Airflow whether a job's events were emitted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Asset, AssetAlias

from lockgate.operators.asset_events.pending_events import Outlet, drop_pending
from lockgate.operators.dag_run.receipts import announce
from lockgate.storage_core.errors import LockgateError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from lockgate.storage_core.commit.job import Job

LOG: Final = logging.getLogger("lockgate.asset_events")
CLOCKS_S: Final = 86_400.0
"""Greatest difference that is expected between the clocks of Airflow and of the process that published."""


def emit_once(
    operator: BaseOperator, context: Context, job: Job, receipt: dict[str, Any], *, is_first: bool
) -> None:
    """Emit the events of a commit task, except those that Airflow already has for this job.

    The record of the pending events is deleted after Airflow has stored the task's success, and with it the
    events. If the process dies between the two, `JobAnnounceOperator` finds the events and deletes the
    record.

    Args:
        operator: The commit task; its `outlets` are what it emits when it ends.
        context: Context of the task.
        job: The committed job.
        receipt: The job's receipt, flat.
        is_first: Whether this try made the decision, so that Airflow cannot have an event yet.
    """
    if not operator.outlets:
        return
    if not is_first:
        extra = {"destination": job.destination, **receipt}
        operator.outlets = [outlet for outlet in operator.outlets if not _is_known(outlet, extra)]
        if not operator.outlets:
            LOG.info("job %s: Airflow has its Asset events; they are not emitted again", job.job_id)
    announce(context, job.destination, receipt, operator.outlets)

    def forget(context: Context) -> None:  # noqa: ARG001 - Airflow passes it
        with suppress(LockgateError):  # JobAnnounceOperator deletes it
            drop_pending(job.store, job.job_id)

    operator.on_success_callback = [*operator.on_success_callback, forget]


def was_emitted(outlet: Outlet, extra: Mapping[str, Any]) -> bool:
    """Return whether Airflow has an event of a job for an outlet.

    Args:
        outlet: Outlet of the job's commit task.
        extra: The event's `extra`: the receipt and the destination.
    """
    from airflow.sdk.execution_time.context import InletEventsAccessor  # noqa: PLC0415 - only while a task runs

    asset = outlet.asset(extra["destination"])
    if isinstance(asset, Asset):
        events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri)
    else:
        events = InletEventsAccessor(asset_name=outlet.name or None, asset_uri=outlet.uri or None)
    since = datetime.fromtimestamp(extra["published_s"] - CLOCKS_S, UTC)
    return any(
        (event.extra or {}).get("job_id") == extra["job_id"] for event in events.after(since.isoformat())
    )


def emit_as(
    operator: BaseOperator, context: Context, by: AssetAlias, outlet: Outlet, extra: Mapping[str, Any]
) -> None:
    """Emit an event of another task's outlet, through an alias of this task."""
    asset = outlet.asset(extra["destination"])
    aliases = [by] if outlet.kind != "alias" else [by, AssetAlias(outlet.name)]
    for alias in aliases:
        if alias not in operator.outlets:
            operator.outlets = [*operator.outlets, alias]
        add: Callable[..., None] = context["outlet_events"][alias].add  # takes a reference, too
        add(asset, extra=dict(extra))


def _is_known(outlet: object, extra: Mapping[str, Any]) -> bool:
    known = Outlet.of(outlet)
    return known is not None and was_emitted(known, extra)
