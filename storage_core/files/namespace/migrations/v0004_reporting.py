"""Version 4 of the family `files`: which blocks have reporting replicas."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "files_4"
down_revision = "files_3"
branch_labels = None


def upgrade() -> None:
    """Make the soft table of reports again, with more columns: the next reports fill it."""
    op.drop_table("volume_report")
    op.create_table(
        "volume_report",
        Column("journal", Text, primary_key=True),
        Column("volume", Text, primary_key=True),
        Column("replicas", BigInteger, nullable=False),
        Column("length_bytes", BigInteger, nullable=False),
        Column("differences", BigInteger, nullable=False),
        Column("reported_s", Double, nullable=False),
        Column("only_ones", BigInteger, nullable=False),
        Column("accepted", BigInteger, nullable=False),
        Column("since_s", Double, nullable=False),
    )
