"""Version 1 of the family `blobs`: blobs, references, upload sets, jobs."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "blobs_1"
down_revision = None
branch_labels = ("blobs",)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "blob",
        Column("journal", Text, primary_key=True),
        Column("job_id", Text, primary_key=True),
        Column("blob_key", Text, primary_key=True),
        Column("guarantee", Text, nullable=False),
        Column("use", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("size_bytes", BigInteger, nullable=False),
        Column("upload_set", Text, nullable=False),
        Column("put_s", Double, nullable=False),
        Column("staged_s", Double),
        Column("deleting_s", Double),
    )
    op.create_index("blob_by_staged_s", "blob", ["journal", "staged_s"])
    op.create_index("blob_by_deleting_s", "blob", ["journal", "deleting_s"])
    op.create_index("blob_by_upload_set", "blob", ["journal", "upload_set"])
    op.create_table(
        "blob_reference",
        Column("journal", Text, primary_key=True),
        Column("job_id", Text, primary_key=True),
        Column("blob_key", Text, primary_key=True),
        Column("owner", Text, primary_key=True),
        Column("taken_s", Double, nullable=False),
        Column("until_s", Double),
    )
    op.create_index("blob_reference_by_owner", "blob_reference", ["journal", "owner"])
    op.create_index("blob_reference_by_until_s", "blob_reference", ["journal", "until_s"])
    op.create_table(
        "upload_set",
        Column("journal", Text, primary_key=True),
        Column("upload_set", Text, primary_key=True),
        Column("job_id", Text, nullable=False),
        Column("began_s", Double, nullable=False),
    )
    op.create_table(
        "blob_job",
        Column("journal", Text, primary_key=True),
        Column("job_id", Text, primary_key=True),
        Column("destination", Text, nullable=False),
        Column("commit_job", Text, nullable=False),
        Column("submitted_s", Double, nullable=False),
        Column("final_s", Double),
    )
    op.create_index(
        "blob_job_by_destination_commit_job", "blob_job", ["journal", "destination", "commit_job"]
    )
