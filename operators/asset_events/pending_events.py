"""Keep at the destination which Asset events a commit task has to emit, until Airflow has them.

Airflow stores the events of a task when the task ends successfully. A commit task that is killed after the
decision emits none, and the job is then finished by a process that does not know the outlets. So the commit
task writes them down before the decision, and deletes the record after Airflow has stored its success.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.definitions.asset import AssetNameRef, AssetRef, AssetUriRef

from lockgate.operators.dag_run.receipts import asset_of
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.claim import read, retry_while_busy
from lockgate.storage_core.commit.records.codec import Record, encode
from lockgate.storage_core.commit.records.job_record import JobId
from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.failpoints import step

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from lockgate.storage_core.commit.job import Job
    from lockgate.storage_core.stores import Store

AnyOutlet = Asset | AssetAlias | AssetRef


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
        retry_while_busy(OutcomeUnknownError)(job.store.put, _key(job.job_id), encode(record))


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
