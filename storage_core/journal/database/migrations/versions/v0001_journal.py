"""Version 1 of the family `journal`: the tables that order entries, leases and claims."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text, UniqueConstraint

revision = "journal_1"
down_revision = None
branch_labels = ("journal",)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "head",
        Column("journal", Text, primary_key=True),
        Column("identity", Text, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("timeline", BigInteger, nullable=False),
        Column("safe_since_s", Double),
        Column("safe_reason", Text, nullable=False),
        Column("pruned_sequence", BigInteger, nullable=False),
        Column("requests_since_s", Double, nullable=False),
    )
    op.create_table(
        "epoch",
        Column("journal", Text, primary_key=True),
        Column("epoch", BigInteger, primary_key=True),
        Column("before", BigInteger, nullable=False),
        Column("timeline", BigInteger, nullable=False),
        Column("reason", Text, nullable=False),
        Column("began_s", Double, nullable=False),
    )
    op.create_table(
        "entry",
        Column("journal", Text, primary_key=True),
        Column("sequence", BigInteger, primary_key=True),
        Column("epoch", BigInteger, nullable=False),
        Column("op", Text, nullable=False),
        Column("payload", Text, nullable=False),
        Column("request_id", Text, nullable=False),
        Column("result", Text, nullable=False),
        Column("at_s", Double, nullable=False),
        UniqueConstraint("journal", "request_id", name="entry_request"),
    )
    op.create_table(
        "request",
        Column("journal", Text, primary_key=True),
        Column("request_id", Text, primary_key=True),
        Column("epoch", BigInteger, nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("op", Text, nullable=False),
        Column("result", Text, nullable=False),
        Column("at_s", Double, nullable=False),
    )
    op.create_table(
        "lease",
        Column("journal", Text, primary_key=True),
        Column("resource", Text, primary_key=True),
        Column("holder", Text, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("standing", Text, nullable=False),
        Column("renewed_s", Double, nullable=False),
        Column("soft_s", Double, nullable=False),
        Column("hard_s", Double, nullable=False),
        Column("suspended_until_s", Double),
        Column("detail", Text, nullable=False),
    )
    op.create_index("lease_by_holder", "lease", ["journal", "holder"])
    op.create_index("lease_by_standing", "lease", ["journal", "standing"])
    op.create_table(
        "claim",
        Column("journal", Text, primary_key=True),
        Column("store", Text, primary_key=True),
        Column("name", Text, primary_key=True),
        Column("body", Text, nullable=False),
        Column("claimed_s", Double, nullable=False),
    )
