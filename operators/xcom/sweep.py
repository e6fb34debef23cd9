"""References of XCom rows that Airflow has deleted without telling its backend, found and dropped.

`airflow db clean`, `airflow dags delete`, a deleted run and Airflow's REST API delete rows as SQL does. Only
Airflow's database knows which rows there are, and tasks do not reach it: this runs where the scheduler or the
API server runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, cast

import msgspec

from lockgate.operators.xcom.rows import OWNER, XComRow, envelope_of
from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey
from lockgate.storage_core.blobs.protocol import Blobs
from lockgate.storage_core.errors import CorruptBlobError

if TYPE_CHECKING:
    from airflow.models.xcom import XComModel


class RowReference(msgspec.Struct, frozen=True, kw_only=True):
    """A reference that a row of Airflow's table has, or had."""

    row: XComRow
    blob_key: BlobKey


class XComSweep(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the references of XCom rows.

    Attributes:
        gone: Their rows are gone, or have another value; dropped, unless it is a dry run.
        kept: How many have their rows.
        young: How many were taken within the last interval: their rows may not be written yet.
        foreign: How many are of DAGs that this Airflow does not know: of another Airflow, or deleted.
        other_scopes: How many are of Airflows that have another scope; of them nothing else is known here.
    """

    is_dry_run: bool
    gone: tuple[RowReference, ...]
    kept: int
    young: int
    foreign: int
    other_scopes: int


def sweep_xcoms(blobs: Blobs, *, scope: str, before_s: float, deleted_dags: bool, dry_run: bool) -> XComSweep:
    """Drop the references of rows that are gone; the sweep of blobs deletes what nothing keeps then.

    References are read before rows, and a row's reference is taken before the row is written: whatever has a
    row by now is found to have it.

    A reference names its row by scope, DAG, run and task: Airflows that share blobs have each a scope of its
    own, or no DAG id in common.

    Args:
        blobs: Where the references are.
        scope: Of this Airflow: references of any other are left alone.
        before_s: References that were taken later are left alone.
        deleted_dags: Also drop those of DAGs that this Airflow does not know. Not where another Airflow of
            this scope shares the blobs.
        dry_run: Change nothing, say what would be dropped.
    """
    taken = [one for one in blobs.references(job_id=NO_JOB) if one.owner.startswith(OWNER)]
    ours = [
        (one.taken_s, RowReference(row=row, blob_key=BlobKey(one.blob_key)))
        for one in taken
        if (row := XComRow.of_owner(one.owner)) is not None and row.scope == scope
    ]
    old = [one for taken_s, one in ours if taken_s < before_s]
    known_dags = _known_dags()
    known = [one for one in old if deleted_dags or one.row.dag_id in known_dags]
    gone = tuple(_without_rows(known))
    if not dry_run:
        for one in gone:
            blobs.drop(NO_JOB, one.blob_key, one.row.owner)
    return XComSweep(
        is_dry_run=dry_run,
        gone=gone,
        kept=len(known) - len(gone),
        young=len(ours) - len(old),
        foreign=len(old) - len(known),
        other_scopes=len(taken) - len(ours),
    )


def _known_dags() -> set[str]:
    from airflow.models.dag import DagModel  # noqa: PLC0415 - needs Airflow's database
    from airflow.utils.session import create_session  # noqa: PLC0415

    with create_session() as session:
        return {dag_id for (dag_id,) in session.query(DagModel.dag_id)}


def _without_rows(references: Iterable[RowReference]) -> Iterator[RowReference]:
    """Yield those whose blobs no row names, a DAG run at a time."""
    ordered = sorted(references, key=lambda one: (_run(one), one.row.owner))
    for (dag_id, run_id), group in groupby(ordered, _run):
        of_run = list(group)
        named = _named(dag_id, run_id, {one.row.task_id for one in of_run})
        yield from (one for one in of_run if (one.row.owner, one.blob_key) not in named)


def _run(reference: RowReference) -> tuple[str, str]:
    return reference.row.dag_id, reference.row.run_id


def _named(dag_id: str, run_id: str, task_ids: Iterable[str]) -> set[tuple[str, BlobKey]]:
    """Return whose references the rows of some tasks of a DAG run have, and to which blobs."""
    from airflow.models.xcom import XComModel  # noqa: PLC0415 - needs Airflow's database
    from airflow.utils.session import create_session  # noqa: PLC0415

    named = set()
    with create_session() as session:
        asked = XComModel.get_many(run_id=run_id, dag_ids=dag_id, task_ids=list(task_ids))
        for stored in cast(
            "Iterable[XComModel]", session.scalars(asked)
        ):  # Airflow's types are of SQLAlchemy 2.0
            with suppress(CorruptBlobError):
                envelope = envelope_of(stored.value)
                if envelope is not None:
                    named.add((envelope.owner, envelope.blob_key))
    return named
