"""`/api/v1/journal`: the journal, its observers and checkpoints."""

from __future__ import annotations

from fastapi import APIRouter

from lockgate.plugins.web.facts import journal
from lockgate.plugins.web.models.journal import CheckpointRow, JournalDetail, ObserverRow
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.paging import DEFAULT_LIMIT, After, Limit
from lockgate.plugins.web.request_reads import ReadsOfRequest

router = APIRouter(prefix="/journal", tags=["journal"])


@router.get("")
def show_journal(reads: ReadsOfRequest) -> JournalDetail:
    """Return the state of the journal."""
    return journal.journal_detail(reads)


@router.get("/observers")
def list_observers(reads: ReadsOfRequest) -> Page[ObserverRow]:
    """List the observers, compared with the primary."""
    return journal.observers(reads)


@router.get("/checkpoints")
def list_checkpoints(
    reads: ReadsOfRequest, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> Page[CheckpointRow]:
    """List the checkpoints, the newest first."""
    return journal.checkpoints(reads, after, limit)
