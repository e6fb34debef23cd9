"""Summarize a journal for `lockgate journal status`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoint, Checkpoints
from lockgate.storage_core.journal.database.create_tables import check_versions
from lockgate.storage_core.journal.database.database import Database, parse_url
from lockgate.storage_core.journal.entries.lease_entries import LeaseState
from lockgate.storage_core.journal.read.snapshot_read import Epoch, Reading, Status, count_leases, read_epochs

_ANSWER_S: Final = 5.0


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `lockgate journal status`.

    Attributes:
        where: URL of the database that was read, without a password.
        journal: Name of the journal.
        status: Newest stamp and safe mode.
        epochs: All epochs of the journal.
        entries: Number of entries kept; older ones were pruned.
        leases: Number of leases in each state, among the first `COUNTED`.
        checkpoint: The newest checkpoint, None if there is none.
        checkpoint_age_s: Age of that checkpoint.
        entries_since_checkpoint: Entries that a restore from the checkpoint alone would lose.
    """

    where: str
    journal: str
    status: Status
    epochs: tuple[Epoch, ...]
    entries: int
    leases: dict[LeaseState, int]
    checkpoint: Checkpoint | None
    checkpoint_age_s: float | None
    entries_since_checkpoint: int


def check_journal(url: str) -> str:
    """Read which tables a journal has, and return its URL without the password; create and change nothing.

    Raises:
        InvalidInputError: The URL is invalid, or there is no such file.
        JournalVersionError: The database has another version than this program.
        JournalUnavailableError: It cannot be reached, or is a standby.
    """
    parsed = parse_url(url)
    with closing(Database(parsed, busy_s=_ANSWER_S, is_primary=True)) as database:
        if database.is_sqlite and not Path(parsed.database or "").is_file():
            raise InvalidInputError(
                f"journal {database.name}: there is no such file on this machine; the first job creates it; "
                "a file serves the processes of one machine only"
            )
        with database.snapshot() as connection:
            check_versions(connection, database)
        return database.name


def overview(reading: Reading, checkpoints: Checkpoints) -> Overview:
    """Return the summary of one state of a journal and its newest checkpoint."""
    status, now_s, newest = reading.status(), reading.now_s(), checkpoints.newest()
    return Overview(
        where=reading.database.name,
        journal=reading.journal,
        status=status,
        epochs=tuple(read_epochs(reading)),
        entries=status.stamp.sequence - status.pruned_sequence,  # numbers have no gap
        leases=count_leases(reading),
        checkpoint=newest,
        checkpoint_age_s=None if newest is None else max(0.0, now_s - newest.made_s),
        entries_since_checkpoint=status.stamp.sequence - (0 if newest is None else newest.stamp.sequence),
    )
