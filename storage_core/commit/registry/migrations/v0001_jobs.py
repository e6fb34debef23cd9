"""Version 1 of the family `jobs`: destinations, jobs, task commits."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "jobs_1"
down_revision = None
branch_labels = ("jobs",)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "destination",
        Column("journal", Text, primary_key=True),
        Column("url", Text, primary_key=True),
        Column("first_s", Double, nullable=False),
        Column("last_s", Double, nullable=False),
    )
    op.create_table(
        "job",
        Column("journal", Text, primary_key=True),
        Column("destination", Text, primary_key=True),
        Column("job_id", Text, primary_key=True),
        Column("name", Text, nullable=False),
        Column("short_id", Text, nullable=False),
        Column("committer", Text, nullable=False),
        Column("mode", Text, nullable=False),
        Column("phase", Text, nullable=False),
        Column("job_attempt", Text, nullable=False),
        Column("set_up_s", Double, nullable=False),
        Column("changed_s", Double, nullable=False),
        Column("ended_s", Double),
    )
    op.create_index("job_by_job_id", "job", ["journal", "job_id"])
    op.create_index("job_by_phase", "job", ["journal", "phase"])
    op.create_table(
        "task_attempt",
        Column("journal", Text, primary_key=True),
        Column("destination", Text, primary_key=True),
        Column("job_id", Text, primary_key=True),
        Column("task_id", Text, primary_key=True),
        Column("attempt_id", Text, primary_key=True),
        Column("job_attempt", Text, nullable=False),
        Column("files", BigInteger, nullable=False),
        Column("rows", BigInteger),
        Column("size_bytes", BigInteger, nullable=False),
        Column("committed_s", Double, nullable=False),
    )
