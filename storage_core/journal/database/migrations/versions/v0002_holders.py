"""Version 2 of the family `journal`: renewals in one row a holder, and new fields of entries.

Entries of version 1 are read and folded as before. `take-lease` has the new field `seen`, and `rearm-leases`
the field `resources`; a program of version 1 could read neither.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double, Text

revision = "journal_2"
down_revision = "journal_1"
branch_labels = None


def upgrade() -> None:
    """Create the table of renewals, with a row for each holder of a lease."""
    op.create_table(
        "holder",
        Column("journal", Text, primary_key=True),
        Column("holder", Text, primary_key=True),
        Column("renewed_s", Double, nullable=False),
    )
    op.create_index("holder_by_renewed_s", "holder", ["journal", "renewed_s"])
    op.add_column("lease", Column("dropped_s", Double))
    op.drop_index("lease_by_standing", "lease")
    op.create_index("lease_by_standing_dropped_s", "lease", ["journal", "standing", "dropped_s"])
    op.execute(
        "INSERT INTO holder (journal, holder, renewed_s) SELECT DISTINCT journal, holder, 0.0 FROM lease "
        "WHERE standing IN ('held', 'recovering')"
    )
