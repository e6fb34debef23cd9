"""Version 2 of the family `jobs`: what lists of jobs show, and indexes to filter, sort and page by.

Entries of version 1 are read and folded as before, into jobs without the new columns; `lockgate jobs rescan`
adds what the store has.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text, text

revision = "jobs_2"
down_revision = "jobs_1"
branch_labels = None


def upgrade() -> None:
    """Add the columns, and replace the index by phase."""
    op.add_column("job", Column("decided_s", Double))
    for name in ("tasks", "files", "rows", "size_bytes"):
        op.add_column("job", Column(name, BigInteger))
    for name in ("dag_id", "run_id", "task_id"):
        op.add_column("job", Column(name, Text))
    op.add_column("job", Column("map_index", BigInteger))
    op.add_column("job", Column("attention", Text))
    op.drop_index("job_by_phase", "job")
    # Prefixes of names are ranges only in the order of code points, which a database's locale may not have.
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.create_index("job_by_name", "job", ["journal", "name" if is_sqlite else text('name COLLATE "C"')])
    for columns in (
        ("phase", "set_up_s"),
        ("destination", "phase", "set_up_s"),
        ("dag_id", "run_id", "task_id"),
        ("attention", "set_up_s"),
        ("ended_s",),
    ):
        op.create_index(f"job_by_{'_'.join(columns)}", "job", ["journal", *columns])
