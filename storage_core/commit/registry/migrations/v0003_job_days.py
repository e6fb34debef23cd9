"""Version 3 of the family `jobs`: totals of each day, and indexes that order the jobs of a filter by name.

Entries are read and folded as before; they change the totals too. The index by end, by which charts read all
jobs, goes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text, column, insert, select, table, text

revision = "jobs_3"
down_revision = "jobs_2"
branch_labels = None

_SUMS: Final = ("jobs", "rows", "with_rows", "size_bytes", "with_size", "commit_ms", "with_time")
_DAY_S: Final = 86_400.0
_GREATEST: Final = 10**15
_AT_ONCE: Final = 1_000


def upgrade() -> None:
    """Create the table and fill it from the jobs, and replace indexes."""
    op.create_table(
        "job_day",
        Column("journal", Text, primary_key=True),
        Column("destination", Text, primary_key=True),
        Column("day", BigInteger, primary_key=True),
        *(Column(name, BigInteger, nullable=False) for name in _SUMS),
    )
    op.drop_index("job_by_ended_s", "job")
    op.drop_index("job_by_name", "job")
    # Lists are merged in the order of code points, which a database's locale may not have.
    order = "" if op.get_bind().dialect.name == "sqlite" else ' COLLATE "C"'
    for columns in (("phase", "name", "destination", "job_id"), ("destination", "phase", "name", "job_id")):
        after_name = columns.index("name")
        indexed = [text(at + order) if at in columns[after_name:] else at for at in columns]
        op.create_index(f"job_by_{'_'.join(columns)}", "job", ["journal", *indexed])
    names = ("journal", "destination", "ended_s", "decided_s", "rows", "size_bytes")
    types = (Text, Text, Double, Double, BigInteger, BigInteger)
    job = table("job", column("phase", Text), *map(column, names, types))
    query = select(*(job.c[name] for name in names)).where(job.c.phase == "committed")
    days: defaultdict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0] * len(_SUMS))
    with op.get_bind().execute(query.execution_options(yield_per=_AT_ONCE)) as jobs:
        for journal, destination, ended_s, decided_s, rows, size_bytes in jobs:
            if not _is_known(ended_s):
                continue
            sums = _sums(ended_s, decided_s, rows, size_bytes)
            for place in {destination, ""}:
                totals = days[journal, place, int(ended_s // _DAY_S)]
                totals[:] = map(sum, zip(totals, sums, strict=True))
    found = [
        {"journal": journal, "destination": place, "day": day, **dict(zip(_SUMS, sums, strict=True))}
        for (journal, place, day), sums in days.items()
    ]
    into = table("job_day", *map(column, ("journal", "destination", "day", *_SUMS)))
    for first in range(0, len(found), _AT_ONCE):
        op.get_bind().execute(insert(into), found[first : first + _AT_ONCE])


def _sums(ended_s: float, decided_s: float | None, rows: int | None, size_bytes: int | None) -> list[int]:
    """Return what one job adds."""
    commit_ms = None if decided_s is None else round(1000 * max(0.0, ended_s - decided_s))
    sums = [1]
    for value in (rows, size_bytes, commit_ms):
        sums += [value, 1] if value is not None and _is_known(value) else [0, 0]
    return sums


def _is_known(value: float | None) -> bool:
    return value is not None and 0 <= value <= _GREATEST
