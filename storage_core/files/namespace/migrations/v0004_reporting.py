"""Version 4 of the family `files`: which blocks have reporting replicas."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double

revision = "files_4"
down_revision = "files_3"
branch_labels = None


def upgrade() -> None:
    """Add columns to the soft table of reports."""
    op.add_column("volume_report", Column("only_ones", BigInteger, nullable=False, server_default="0"))
    op.add_column("volume_report", Column("accepted", BigInteger, nullable=False, server_default="0"))
    op.add_column("volume_report", Column("since_s", Double, nullable=False, server_default="0"))
