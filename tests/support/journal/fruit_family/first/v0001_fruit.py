"""Create the table of the number of times that each resource has ended."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "fruit_1"
down_revision = None
branch_labels = ("fruit",)


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "fruit",
        Column("journal", Text, primary_key=True),
        Column("resource", Text, primary_key=True),
        Column("ended", BigInteger, nullable=False),
        Column("at_s", Double, nullable=False),
    )
    op.create_index("fruit_by_ended", "fruit", ["journal", "ended"])
