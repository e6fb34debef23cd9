"""The log of a destination as a history: each turn with its job, who set that up, and what it changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query

from lockgate.plugins.web.access import HostOfRequest
from lockgate.plugins.web.answers import DEFAULT_LIMIT, After, Limit, Page, cursor, key_after
from lockgate.plugins.web.api.jobs import Origin, origin_of, with_users
from lockgate.plugins.web.api.turn import READS_AT_ONCE, Above, Turn, with_readers
from lockgate.plugins.web.request_reads import Reads, ReadsOfRequest
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import find, read
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobId, JobOrigin
from lockgate.storage_core.commit.records.log_records import Outcome, TurnClaim
from lockgate.storage_core.commit.records.shards import ShardRef, total_rows
from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import (
    JournalUnavailableError,
    MalformedRecordError,
    ObjectNotFoundError,
    StateLostError,
)
from lockgate.storage_core.stores import Store, open_store

router = APIRouter(prefix="/destinations/log", tags=["destinations"])

KnownDestination = Annotated[str, Query(max_length=2_048, description="A known destination.")]


class _Writer(NamedTuple):
    """Who set a job up, and why that cannot be read."""

    origin: Origin | None = None
    created_by: str = ""
    unknown: str = ""


@router.get("")
def destination_log(
    reads: ReadsOfRequest,
    host: HostOfRequest,
    destination: KnownDestination,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[Turn]:
    """Return a destination's log, the newest turn first, each with who set its job up.

    Raises:
        DestinationNotFoundError: The destination is not known.
        StoreUnavailableError: The store does not answer.
    """
    place, key = reads.known(destination), key_after("log", after, int, int, bool, (int, float))
    log = DestinationLog(open_store(place, reads.settings))

    def read_turns() -> tuple[list[Turn], list[str], list[_Writer], int, Above]:
        newest = log.highest()
        begin = 0 if newest is None else newest.number
        last = begin if newest is None or newest.outcome is not None else begin - 1
        above = Above()
        if key is not None:
            begin, above = min(begin, key[0]), Above(*key[1:])
        numbers = range(begin, max(0, begin - limit), -1)
        found = list(in_order(partial(read_turn, log.store), numbers, READS_AT_ONCE))
        unknown = [text for text in found if isinstance(text, str)]
        turns = [turn for turn in found if isinstance(turn, Turn)]
        turns, above = with_readers(log, turns, last, above, now_s=reads.clock.now_s(), unknown=unknown)
        writer = partial(_writer, log.store, _registered(reads, place, turns))
        writers = list(in_order(writer, turns, READS_AT_ONCE))
        return turns, unknown, writers, begin - len(numbers), above

    turns, unknown, writers, rest, above = reads.store(place, read_turns)
    origins = with_users(host, [writer.origin for writer in writers])
    return Page(
        items=tuple(
            turn.model_copy(update={"origin": origin, "created_by": writer.created_by})
            for turn, writer, origin in zip(turns, writers, origins, strict=True)
        ),
        next_after=cursor("log", (rest, *above)) if rest > 0 else None,
        unknown=(*unknown, *(writer.unknown for writer in writers if writer.unknown)),
    )


def read_turn(store: Store, number: int) -> Turn | str:
    """Return one turn of a log without who set its job up, or why it cannot be read."""
    try:
        outcome = find(store, Outcome, layout.turn_outcome(number))
        if outcome is None:
            owner = read(store, TurnClaim, layout.turn_claim(number)).job_id
            return Turn(turn=number, job_id=owner)
    except (MalformedRecordError, ObjectNotFoundError) as error:
        return f"turn {number}: {error}"
    return Turn(
        turn=number,
        job_id=outcome.job_id,
        verdict=outcome.verdict,
        decided_s=outcome.decided_s,
        mode="" if outcome.receipt is None else outcome.receipt.mode,
        added_files=total(outcome.added, "files"),
        added_rows=total_rows(ref.rows for ref in outcome.added),
        added_bytes=total(outcome.added, "size"),
        removed_files=total(outcome.removed, "files"),
        removed_rows=total_rows(ref.rows for ref in outcome.removed),
        removed_bytes=total(outcome.removed, "size"),
        reason=outcome.reason,
    )


def total(refs: Iterable[ShardRef], name: str) -> int:
    """Return the sum of a field of references to lists of files."""
    return sum(getattr(ref, name) for ref in refs)


def _registered(reads: Reads, place: str, turns: Sequence[Turn]) -> dict[str, Origin]:
    """Return the origins that the registry has, by the ids of the jobs."""
    if not reads.has_journal:
        return {}
    keys = sorted({(place, turn.job_id) for turn in turns})
    try:
        jobs = reads.journal(lambda reading: reading.find(Job, keys))
    except (JournalUnavailableError, StateLostError):
        return {}  # the jobs' records have them, too
    return {job.job_id: origin for job in jobs if (origin := origin_of(job)) is not None}


def _writer(store: Store, registered: Mapping[str, Origin], turn: Turn) -> _Writer:
    """Return who set a turn's job up: the registry knows the task, the job's record the process as well."""
    if turn.job_id in registered:
        return _Writer(registered[turn.job_id])
    try:
        record = JobFolder(store, JobId(turn.job_id)).job()
    except ObjectNotFoundError:
        return _Writer()  # the folder of an older generation is deleted after a time
    except MalformedRecordError as error:
        return _Writer(unknown=f"turn {turn.turn}: {error}")
    if isinstance(record.origin, JobOrigin):
        return _Writer(Origin.model_validate(record.origin))
    return _Writer(created_by=record.created_by)
