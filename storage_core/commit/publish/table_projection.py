"""Project a published turn into the tables of its destination, before the files that it replaced are deleted.

A projection never fails a commit: the report says which tables are behind, and recovery comes back to a job
whose projection failed for a reason that may pass.
Source: tables, "When it is written".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from lockgate.storage_core.commit.decide.plan import Plan
from lockgate.storage_core.commit.destination.projection import (
    behind,
    may_pass,
    project,
    read_tables,
    write_statistics,
)
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES
from lockgate.storage_core.commit.records.table_records import TablesRecord
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.stores.protocol import in_pages

CAUGHT_UP: Final = 100
"""Turns of a table that a commit projects at most, so that its end does not wait for a long log."""


def statistics_of(context: CommitContext, plan: Plan) -> Iterator[str]:
    """Write the statistics of the files that a plan adds, a shard for each list of the outcome."""
    for files in in_pages(plan.all_additions(), SHARD_ENTRIES):
        yield write_statistics(
            context.store, (file.statistics for file in files), with_types=plan.head.columns is None
        )


def project_turn(
    context: CommitContext, turn: int, tables: TablesRecord | msgspec.UnsetType | None = msgspec.UNSET
) -> None:
    """Bring the destination's tables up to a turn; the context's `tables` has what is behind, and why.

    Args:
        context: Context of the job.
        turn: Its turn.
        tables: Table formats of the destination; by default they are read.
    """
    try:
        known = read_tables(context.store) if tables is msgspec.UNSET else tables
    except LockgateError as error:
        context.tables.text = f"it is not known whether tables are behind: {error}"
        context.tables.is_waiting = may_pass(error)
        return
    failed = project(context.store, known, turn, context.settings.near_calls, most=CAUGHT_UP)
    context.tables.text = behind(context.store, known, turn, failed)
    context.tables.is_waiting = any(map(may_pass, failed.values()))


def and_behind(context: CommitContext, text: str) -> str:
    """Add which tables are behind to a text about a job."""
    return "; ".join(filter(None, (text, context.tables.text)))
