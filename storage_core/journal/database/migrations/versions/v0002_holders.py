"""Version 2 of the family `journal`: one row a holder for renewals, reasons for safe mode, fields of entries.

Entries of version 1 are read and folded as before. `rearm-leases` has the new field `resources`, which a
program of version 1 could not read.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double, Text

revision = "journal_2"
down_revision = "journal_1"
branch_labels = None


def upgrade() -> None:
    """Create the tables of renewals, with a row for each holder of a lease, and of reasons for safe mode."""
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
    op.create_table(
        "safe_reason",
        Column("journal", Text, primary_key=True),
        Column("reason", Text, primary_key=True),
        Column("text", Text, nullable=False),
        Column("since_s", Double, nullable=False),
    )
    op.execute(
        "INSERT INTO safe_reason (journal, reason, text, since_s) SELECT journal, 'restored', safe_reason, "
        "safe_since_s FROM head WHERE safe_since_s IS NOT NULL"
    )
    op.drop_column("head", "safe_reason")
