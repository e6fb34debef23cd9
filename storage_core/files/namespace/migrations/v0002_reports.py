"""Version 2 of the family `files`: the faults of members, and the last report of each volume."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "files_2"
down_revision = "files_1"
branch_labels = None


def upgrade() -> None:
    """Add the column of faults, which is empty at first, and the soft table of reports."""
    op.add_column("file_member", Column("fault", Text))
    op.create_table(
        "volume_report",
        Column("journal", Text, primary_key=True),
        Column("volume", Text, primary_key=True),
        Column("replicas", BigInteger, nullable=False),
        Column("length_bytes", BigInteger, nullable=False),
        Column("differences", BigInteger, nullable=False),
        Column("reported_s", Double, nullable=False),
    )
