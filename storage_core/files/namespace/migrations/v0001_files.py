"""Version 1 of the family `files`: names, files, blocks, members, volumes."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "files_1"
down_revision = None
branch_labels = ("files",)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "inode",
        Column("journal", Text, primary_key=True),
        Column("parent", BigInteger, primary_key=True, autoincrement=False),
        Column("name", Text, primary_key=True),
        Column("inode", BigInteger, nullable=False),
        Column("kind", Text, nullable=False),
        Column("made_s", Double, nullable=False),
    )
    op.create_index("inode_by_inode", "inode", ["journal", "inode"])
    op.create_table(
        "file",
        Column("journal", Text, primary_key=True),
        Column("inode", BigInteger, primary_key=True, autoincrement=False),
        Column("state", Text, nullable=False),
        Column("blocks", BigInteger, nullable=False),
        Column("length_bytes", BigInteger, nullable=False),
        Column("changed_s", Double, nullable=False),
    )
    op.create_table(
        "file_block",
        Column("journal", Text, primary_key=True),
        Column("block", BigInteger, primary_key=True, autoincrement=False),
        Column("file", BigInteger, nullable=False),
        Column("ordinal", BigInteger, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("length_bytes", BigInteger, nullable=False),
        Column("state", Text, nullable=False),
        Column("pending_epoch", BigInteger),
        Column("pending_sequence", BigInteger),
        Column("target_bytes", BigInteger),
    )
    op.create_index("file_block_by_file_ordinal", "file_block", ["journal", "file", "ordinal"])
    op.create_table(
        "file_member",
        Column("journal", Text, primary_key=True),
        Column("block", BigInteger, primary_key=True, autoincrement=False),
        Column("volume", Text, primary_key=True),
    )
    op.create_index("file_member_by_volume_block", "file_member", ["journal", "volume", "block"])
    op.create_table(
        "volume",
        Column("journal", Text, primary_key=True),
        Column("volume", Text, primary_key=True),
        Column("url", Text, nullable=False),
        Column("added_s", Double, nullable=False),
    )
