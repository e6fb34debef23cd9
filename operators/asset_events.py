"""Asset events of committed jobs; a record at the destination keeps those that Airflow does not have yet.

Airflow stores the events of a task when the task ends successfully. A commit task that is killed after the
decision emits none, and the job is then finished by a process that does not know the outlets. So the commit
task writes them down before the decision, and deletes the record after Airflow has stored its success.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import msgspec
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.definitions.asset import AssetNameRef, AssetRef, AssetUriRef

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import Record, encode
from lockgate.storage_core.commit.records.create_if_absent import read, retry_while_busy
from lockgate.storage_core.commit.records.job_record import JobId
from lockgate.storage_core.errors import LockgateError, OutcomeUnknownError
from lockgate.storage_core.failpoints import step

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from lockgate.storage_core.commit.job import Job
    from lockgate.storage_core.commit.records.log_records import Receipt
    from lockgate.storage_core.stores import Store

LOG: Final = logging.getLogger("lockgate.asset_events")
CLOCKS_S: Final = 86_400.0
"""Greatest difference that is expected between the clocks of Airflow and of the process that published."""


class Outlet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An outlet of a commit task, as the DAG declares it."""

    kind: Literal["asset", "alias", "name", "uri"]
    name: str = ""
    uri: str = ""

    @classmethod
    def of(cls, outlet: object) -> Outlet | None:
        """Return the record of an outlet; None if it has no Asset events."""
        match outlet:
            case Asset():
                return cls(kind="asset", name=outlet.name, uri=outlet.uri)
            case AssetAlias():
                return cls(kind="alias", name=outlet.name)
            case AssetNameRef():
                return cls(kind="name", name=outlet.name)
            case AssetUriRef():
                return cls(kind="uri", uri=outlet.uri)
        return None

    def asset(self, destination: str) -> Asset | AssetRef:
        """Return the Asset that gets the event; for an alias, that of the destination."""
        match self.kind:
            case "asset":
                return Asset(name=self.name, uri=self.uri)
            case "alias":
                return asset_of(destination)
            case "name":
                return Asset.ref(name=self.name)
            case "uri":
                return Asset.ref(uri=self.uri)


class PendingEvents(Record, frozen=True, tag="asset-events"):
    """`asset-events/<job id>.json`: the outlets of a job's commit task, which has not ended successfully.

    Attributes:
        dag_id: DAG of the commit task; with the other ids, its task instance.
    """

    job_id: JobId
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    outlets: tuple[Outlet, ...]


def save_pending(
    job: Job, ti: RuntimeTaskInstanceProtocol, outlets: Iterable[object], *, task_id: str | None = None
) -> None:
    """Write down which Asset events the commit task of a job has to emit; nothing if there are none.

    Args:
        job: The job, before its decision.
        ti: Task instance that commits, or one of the same DAG run.
        outlets: Outlets of the commit task.
        task_id: Id of the commit task, if `ti` is another one.
    """
    found = tuple(known for outlet in outlets if (known := Outlet.of(outlet)) is not None)
    if not found:
        return
    index = ti.map_index if task_id is None and ti.map_index is not None else -1
    record = PendingEvents(
        job_id=job.job_id,
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=task_id or ti.task_id,
        map_index=index,
        outlets=found,
    )
    with step("asset-events"):
        # Every try writes the same, so a call without an answer is repeated.
        retry_while_busy(OutcomeUnknownError).call(job.store.put, _key(job.job_id), encode(record))


def pending_keys(store: Store, job_id: str = "") -> Iterator[str]:
    """Yield the keys of a destination's records.

    Args:
        store: Store of the destination.
        job_id: Only the record of this job, which may not exist.

    Raises:
        LockgateError: The destination cannot be listed.
    """
    if job_id:
        yield _key(job_id)
        return
    for page in store.pages(layout.ASSET_EVENTS):
        for info in page:
            yield info.key


def read_pending(store: Store, key: str) -> PendingEvents:
    """Return a record.

    Raises:
        MalformedRecordError: It is damaged.
        ObjectNotFoundError: It has been deleted: the events have been emitted.
    """
    return read(store, PendingEvents, key)


def drop_pending(store: Store, job_id: str) -> None:
    """Delete the record of a job; harmless if there is none."""
    with step("asset-events"):
        store.delete(_key(job_id))


def _key(job_id: str) -> str:
    return f"{layout.ASSET_EVENTS}{job_id}.json"


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
    from airflow.sdk.execution_time.context import InletEventsAccessor

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


def flat(receipt: Receipt) -> dict[str, Any]:
    """Return the receipt as a flat dictionary of JSON values: Airflow has failed on a nested `extra`."""
    return dict(msgspec.to_builtins(receipt))


def asset_of(destination: str) -> Asset:
    """Return the Asset of a destination: its URL, in the ASCII that Airflow requires."""
    return Asset(name=destination, uri=quote(destination, safe=":/%@+=,~()!*'"))


def announce(
    context: Context, destination: str, receipt: dict[str, Any], outlets: Iterable[Asset | AssetAlias]
) -> None:
    """Add the receipt to the event of every outlet; for an alias, to that of the destination's Asset."""
    for outlet in outlets:
        event = context["outlet_events"][outlet]
        if isinstance(outlet, AssetAlias):
            event.add(asset_of(destination), extra={"destination": destination, **receipt})
        else:
            event.extra.update({"destination": destination, **receipt})
