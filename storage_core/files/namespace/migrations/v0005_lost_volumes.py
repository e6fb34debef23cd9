"""Version 5 of the family `files`: volumes that were declared lost."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double

revision = "files_5"
down_revision = "files_4"
branch_labels = None


def upgrade() -> None:
    """Add the column, which is empty at first."""
    op.add_column("volume", Column("lost_s", Double))
