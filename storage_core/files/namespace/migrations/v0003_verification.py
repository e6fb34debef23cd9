"""Version 3 of the family `files`: how far the verification of each volume has come."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "files_3"
down_revision = "files_2"
branch_labels = None


def upgrade() -> None:
    """Create the soft table."""
    op.create_table(
        "volume_verification",
        Column("journal", Text, primary_key=True),
        Column("volume", Text, primary_key=True),
        Column("after_block", BigInteger, nullable=False),
        Column("verified_s", Double),
    )
