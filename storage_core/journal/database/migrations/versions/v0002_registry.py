"""The registry of jobs: destinations, jobs, attempts; claims at stores without conditional create."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables."""
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
    op.create_index("job_id", "job", ["journal", "job_id"])
    op.create_index("job_phase", "job", ["journal", "phase"])
    op.create_table(
        "attempt",
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
    op.create_table(
        "claim",
        Column("journal", Text, primary_key=True),
        Column("store", Text, primary_key=True),
        Column("name", Text, primary_key=True),
        Column("body", Text, nullable=False),
        Column("claimed_s", Double, nullable=False),
    )
