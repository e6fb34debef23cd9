"""Version 2 of the family `blobs`: the index by owner has the whole key.

PostgreSQL may look a reference up by the index by owner, because that of the primary key is larger. It then
read all references of the owner, as many as a job has blobs, for each one.
"""

from __future__ import annotations

from alembic import op

revision = "blobs_2"
down_revision = "blobs_1"
branch_labels = None


def upgrade() -> None:
    """Replace the index."""
    op.drop_index("blob_reference_by_owner", "blob_reference")
    columns = ("owner", "job_id", "blob_key")
    op.create_index(f"blob_reference_by_{'_'.join(columns)}", "blob_reference", ["journal", *columns])
