"""The tables. `migrations/` brings an older database to them; a test compares the two."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA: Final = MetaData()
VERSIONS: Final = ("0001", "0002", "0003")
"""The migrations, from the first; `migrations/versions` has a file for each."""
VERSION: Final = VERSIONS[-1]
"""What this program works with: an older database is migrated, any other is refused."""

VERSION_TABLE: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own, as Alembic makes it: one row, the version of the database."""

OBSERVER_MARK: Final = int.from_bytes(b"LGob", "big")
"""The `application_id` of a SQLite file that an observer keeps: nothing but its tailer writes there."""


def _table(name: str, *columns: Column[object] | Index | UniqueConstraint) -> Table:
    return Table(name, METADATA, Column("journal", Text, primary_key=True), *columns)


HEAD: Final = _table(
    "head",
    Column("identity", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("timeline", BigInteger, nullable=False),
    Column("safe_since_s", Double),
    Column("safe_reason", Text, nullable=False, default=""),
    Column("pruned_sequence", BigInteger, nullable=False, default=0),
    Column("requests_since_s", Double, nullable=False, default=0.0),
)
"""One row a journal. Locking it is the first statement of a write: it serialises the journal's writers.

`identity` tells the journal from every other, whatever their names. Entries up to `pruned_sequence` are gone.
Request ids from `requests_since_s` on are kept. `safe_since_s` is set while the journal is in safe mode.
"""

EPOCH: Final = _table(
    "epoch",
    Column("epoch", BigInteger, primary_key=True),
    Column("before", BigInteger, nullable=False),
    Column("timeline", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("began_s", Double, nullable=False),
)
"""`before`: the last sequence of the epochs before it that survived."""

ENTRY: Final = _table(
    "entry",
    Column("sequence", BigInteger, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("op", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("at_s", Double, nullable=False),
    UniqueConstraint("journal", "request_id", name="entry_request"),
)

REQUEST: Final = _table(
    "request",
    Column("request_id", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("op", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("at_s", Double, nullable=False),
)
"""The request ids of entries that were pruned."""

LEASE: Final = _table(
    "lease",
    Column("resource", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("standing", Text, nullable=False),
    Column("renewed_s", Double, nullable=False),
    Column("soft_s", Double, nullable=False),
    Column("hard_s", Double, nullable=False),
    Column("parked_until_s", Double),
    Column("detail", Text, nullable=False),
    Index("lease_holder", "journal", "holder"),
    Index("lease_standing", "journal", "standing"),
)

DESTINATION: Final = _table(
    "destination",
    Column("url", Text, primary_key=True),
    Column("first_s", Double, nullable=False),
    Column("last_s", Double, nullable=False),
)

JOB: Final = _table(
    "job",
    Column("destination", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("short_id", Text, nullable=False),
    Column("committer", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("job_attempt", Text, nullable=False),
    Column("set_up_s", Double, nullable=False),
    Column("changed_s", Double, nullable=False),
    Column("ended_s", Double),
    Index("job_id", "journal", "job_id"),
    Index("job_phase", "journal", "phase"),
)

ATTEMPT: Final = _table(
    "attempt",
    Column("destination", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("attempt_id", Text, primary_key=True),
    Column("job_attempt", Text, nullable=False),
    Column("files", BigInteger, nullable=False),
    Column("rows", BigInteger),
    Column("size_bytes", BigInteger, nullable=False),
    Column("committed_s", Double, nullable=False),
)

CLAIM: Final = _table(
    "claim",
    Column("store", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("claimed_s", Double, nullable=False),
)

BLOB: Final = _table(
    "blob",
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
    Index("blob_staged", "journal", "staged_s"),
    Index("blob_deleting", "journal", "deleting_s"),
    Index("blob_upload_set", "journal", "upload_set"),
)

REFERENCE: Final = _table(
    "reference",
    Column("job_id", Text, primary_key=True),
    Column("blob_key", Text, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("taken_s", Double, nullable=False),
    Column("until_s", Double),
    Index("reference_owner", "journal", "owner"),
    Index("reference_until", "journal", "until_s"),
)

UPLOAD_SET: Final = _table(
    "upload_set",
    Column("upload_set", Text, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("began_s", Double, nullable=False),
)

BLOB_JOB: Final = _table(
    "blob_job",
    Column("job_id", Text, primary_key=True),
    Column("destination", Text, nullable=False),
    Column("commit_job", Text, nullable=False),
    Column("submitted_s", Double, nullable=False),
    Column("final_s", Double),
    Index("blob_job_commit", "journal", "destination", "commit_job"),
)
