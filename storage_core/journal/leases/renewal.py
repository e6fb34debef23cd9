"""One renewal of all leases of a holder: it reads their stamps and writes one row.

A lease's own row is written only if the holder has dropped it since its last renewal, so that it lapses, or
renews it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, case, literal, select, update

from lockgate.storage_core.journal.database import bulk
from lockgate.storage_core.journal.database.database import NOW, Database, now_parameter
from lockgate.storage_core.journal.database.pipeline import Row, Statement, execute_pipelined
from lockgate.storage_core.journal.database.renewals import add_holder, renew_holder
from lockgate.storage_core.journal.database.schema import HOLDER, IS_RENEWABLE, LEASE
from lockgate.storage_core.journal.read.same_journal import Known, as_parameters, is_same
from lockgate.storage_core.journal.write.head import lock_head
from lockgate.storage_core.stamp import Stamp

_LEASES_A_STATEMENT: Final = 10_000
"""SQLite limits the parameters of a statement to 32,766, PostgreSQL to 65,535."""

_HOLDER: Final = "of_holder"


def renew(
    connection: Connection, database: Database, known: Known, holder: str, held: Mapping[str, Stamp]
) -> set[str]:
    """Renew the leases that a holder still holds, and return their resources.

    Raises:
        StateLostError: The database is not the known one.
    """
    locked, leases = _lock_and_read(connection, database, known, holder)
    if not locked:  # another journal, or a restored one, which has no rows of holders
        lock_head(connection, database, known)
        execute_pipelined(connection, [add_holder(known.journal, holder, for_sqlite=database.is_sqlite)])
        locked, leases = _lock_and_read(connection, database, known, holder)
    ((before_s, now_s),) = locked
    alive, dropped, again = set[str](), list[str](), list[str]()
    newest_s = before_s
    for resource, epoch, sequence, renewed_s, dropped_s in leases:
        stamp = held.get(resource)
        if stamp is not None and stamp.sequence == sequence and stamp.epoch == epoch:
            alive.add(resource)
            newest_s = max(newest_s, renewed_s)
            if dropped_s is not None:
                again.append(resource)
        elif dropped_s is None:
            dropped.append(resource)
    own_s = case((LEASE.c.renewed_s < before_s, literal(before_s)), else_=LEASE.c.renewed_s)
    _update(connection, known.journal, dropped, renewed_s=own_s, dropped_s=now_s)
    _update(connection, known.journal, again, dropped_s=None)
    if alive:
        renew_holder(connection, known.journal, holder, now_s, newest_s)
    return alive


def _lock_and_read(
    connection: Connection, database: Database, known: Known, holder: str
) -> Sequence[Sequence[Row]]:
    """Lock the holder's row, then read its leases as of after the lock."""
    of_holder = {bulk.JOURNAL: known.journal, _HOLDER: holder}
    lock = {**of_holder, **as_parameters(known), NOW: database.injected_now_s()}
    leases = Statement(_leases(), of_holder, keeps_plan=False)
    return execute_pipelined(connection, [Statement(_lock(database.is_sqlite), lock), leases])


@cache
def _lock(for_sqlite: bool) -> Select[Any]:
    """Lock the holder's row if the journal is the known one; return its time, and the time after the lock."""
    row = select(HOLDER.c.renewed_s).where(
        HOLDER.c.journal == bindparam(bulk.JOURNAL),
        HOLDER.c.holder == bindparam(_HOLDER),
        is_same(for_sqlite),
    )
    locked = (row if for_sqlite else row.with_for_update(of=HOLDER)).subquery()
    return select(locked.c.renewed_s, now_parameter(for_sqlite))


@cache
def _leases() -> Select[Any]:
    names = ("resource", "epoch", "sequence", "renewed_s", "dropped_s")
    return select(*(LEASE.c[name] for name in names)).where(
        LEASE.c.journal == bindparam(bulk.JOURNAL), LEASE.c.holder == bindparam(_HOLDER), IS_RENEWABLE
    )


def _update(connection: Connection, journal: str, resources: Sequence[str], **values: Any) -> None:
    for named in _slices(resources):
        rows = update(LEASE).where(LEASE.c.journal == journal, LEASE.c.resource.in_(named))
        connection.execute(rows.values(**values))


def _slices(resources: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield slices that one statement can take as parameters."""
    for start in range(0, len(resources), _LEASES_A_STATEMENT):
        yield resources[start : start + _LEASES_A_STATEMENT]
