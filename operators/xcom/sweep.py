"""Find and drop the references of XCom rows that Airflow has deleted without calling its backend.

`airflow db clean`, `airflow dags delete`, a deleted run and Airflow's REST API delete rows by SQL. Only
Airflow's database knows which rows exist, and tasks cannot reach it: run this where the scheduler or the API
server runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, cast

import msgspec

from lockgate.operators.xcom.envelope import OWNER, XComRow, envelope_of
from lockgate.storage_core.blobs.blob_protocol import Blobs
from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey
from lockgate.storage_core.errors import CorruptBlobError

if TYPE_CHECKING:
    from airflow.models.xcom import XComModel


class RowReference(msgspec.Struct, frozen=True, kw_only=True):
    """The reference of a row of Airflow's table, which may have been deleted."""

    row: XComRow
    blob_key: BlobKey


class XComSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a sweep of XCom references.

    Attributes:
        gone: References whose rows were deleted or have another value; dropped, unless it is a dry run.
        kept: Number of references whose rows exist.
        young: Number taken within the last interval, whose rows may not be written yet.
        foreign: Number of DAGs that this Airflow does not know, deleted or of another Airflow.
        other_scopes: Number of Airflows with another scope.
    """

    is_dry_run: bool
    gone: tuple[RowReference, ...]
    kept: int
    young: int
    foreign: int
    other_scopes: int


def sweep_xcoms(blobs: Blobs, *, scope: str, before_s: float, deleted_dags: bool, dry_run: bool) -> XComSweep:
    """Drop the references of deleted rows; the sweep of blobs then deletes unreferenced blobs.

    References are read before rows, and a row's reference is taken before the row is written, so the row of
    every reference that was read is found if it exists.

    A reference names its row by scope, DAG, run and task. Airflows that share blobs need different scopes, or
    no DAG id in common.

    Args:
        blobs: Blobs with the references.
        scope: Scope of this Airflow; references of other scopes are left alone.
        before_s: References that were taken later are left alone.
        deleted_dags: Also drop references of DAGs that this Airflow does not know. Do not use it if another
            Airflow of this scope shares the blobs.
        dry_run: Change nothing, only report what would be dropped.
    """
    references = [each for each in blobs.references(job_id=NO_JOB) if each.owner.startswith(OWNER)]
    ours = [
        (each.taken_s, RowReference(row=row, blob_key=BlobKey(each.blob_key)))
        for each in references
        if (row := XComRow.of_owner(each.owner)) is not None and row.scope == scope
    ]
    old = [reference for taken_s, reference in ours if taken_s < before_s]
    known_dags = _known_dags()
    known = [reference for reference in old if deleted_dags or reference.row.dag_id in known_dags]
    gone = tuple(_without_rows(known))
    if not dry_run:
        for reference in gone:
            blobs.drop(NO_JOB, reference.blob_key, reference.row.owner)
    return XComSweep(
        is_dry_run=dry_run,
        gone=gone,
        kept=len(known) - len(gone),
        young=len(ours) - len(old),
        foreign=len(old) - len(known),
        other_scopes=len(references) - len(ours),
    )


def _known_dags() -> set[str]:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        return {dag_id for (dag_id,) in session.query(DagModel.dag_id)}


def _without_rows(references: Iterable[RowReference]) -> Iterator[RowReference]:
    """Yield the references whose blobs no row names; query one DAG run at a time."""
    ordered = sorted(references, key=lambda reference: (_run(reference), reference.row.owner))
    for (dag_id, run_id), group in groupby(ordered, _run):
        in_run = list(group)
        named = _named(dag_id, run_id, {reference.row.task_id for reference in in_run})
        yield from (each for each in in_run if (each.row.owner, each.blob_key) not in named)


def _run(reference: RowReference) -> tuple[str, str]:
    return reference.row.dag_id, reference.row.run_id


def _named(dag_id: str, run_id: str, task_ids: Iterable[str]) -> set[tuple[str, BlobKey]]:
    """Return the owner and blob key of every envelope in the rows of some tasks of a DAG run."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    named = set()
    with create_session() as session:
        query = XComModel.get_many(run_id=run_id, dag_ids=dag_id, task_ids=list(task_ids))
        # A cast: Airflow's types are of SQLAlchemy 2.0.
        for stored in cast("Iterable[XComModel]", session.scalars(query)):
            with suppress(CorruptBlobError):
                envelope = envelope_of(stored.value)
                if envelope is not None:
                    named.add((envelope.owner, envelope.blob_key))
    return named
