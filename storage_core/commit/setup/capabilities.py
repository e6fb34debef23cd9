"""Capabilities of a destination's store, and the arbiter of names if it has no conditional create.

The first set-up probes the store and records the result, which later processes read. A store without
conditional create needs a journal as arbiter, the same one for all processes that use the destination.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.leases.job_lease import own_journal
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import claim, find
from lockgate.storage_core.commit.records.job_record import StoreRecord
from lockgate.storage_core.errors import ConflictError, DestinationNotFoundError, UnsupportedStoreError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.open_store import canonical_url
from lockgate.storage_core.stores.probe import PROBES, ProbeReport, probe, with_capabilities

if TYPE_CHECKING:
    from lockgate.storage_core.commit.setup.arbitrated_store import ArbitratedStore
    from lockgate.storage_core.journal import Journal
    from lockgate.storage_core.journal.claims import Claims

LOG: Final = logging.getLogger("lockgate.setup")


def with_probed_capabilities(
    store: Store, settings: Settings, clock: Clock, *, before_probe: Callable[[], object] = lambda: None
) -> Store:
    """Return the store with the capabilities recorded at this destination; probe it if there are none.

    Args:
        store: Store of the destination.
        settings: Settings, with the journal.
        clock: Clock for the time of the probe.
        before_probe: Is called before the destination gets its first record; an error of it is raised.

    Raises:
        UnsupportedStoreError: The store has no conditional create, which safe commits need, and this process
            has no journal, or not the destination's; or nothing can be written there, or the probe saw
            something unsafe that LOCKGATE_ACCEPT_UNSAFE_STORE does not accept.
        ConflictError: The journal has claims of names of the destination that the store does not have.
        JournalUnavailableError: The journal cannot be reached.
    """
    with step("probe"):
        known = find(store, StoreRecord, layout.PROBED)
        if known is None:
            before_probe()
            known = _first_seen(store, settings, clock)
        return _as_known(store, known, settings, clock)


def with_recorded_capabilities(store: Store, settings: Settings, clock: Clock) -> Store:
    """Return the store with its recorded capabilities; unchanged if no job was ever set up.

    Raises:
        UnsupportedStoreError: See `with_probed_capabilities`.
        JournalUnavailableError: The journal cannot be reached.
    """
    with step("probe"):
        known = find(store, StoreRecord, layout.PROBED)
        return store if known is None else _as_known(store, known, settings, clock)


def forget_destination(store: Store, journal: Journal) -> int:
    """Release all names of a destination that was deleted by hand; return their number.

    Raises:
        ConflictError: The store still has records of jobs; nothing was released.
    """
    left = next(iter(store.pages(layout.ROOT, page_size=1)), ())
    if left:
        raise ConflictError(
            f"{store.url}: {left[0].key} exists: the destination was not deleted, and the journal still "
            "decides in it; nothing was forgotten; delete everything in its _lockgate/ first"
        )
    claims = _claims(store, journal)
    return claims.release(claims.names())


def probe_again(store: Store) -> None:
    """Let the next job probe the store again, whose promises have changed since the first set-up.

    No job may be at work at the destination.

    Raises:
        ConflictError: A journal is the arbiter there, and stays it.
    """
    known = find(store, StoreRecord, layout.PROBED)
    if known is not None and known.arbiter:
        raise ConflictError(
            f"{store.url}: journal {known.arbiter_url} decides there, whatever the store can do now; nothing "
            "was changed"
        )
    store.delete(layout.PROBED)


def arbiter_for(store: Store, settings: Settings, clock: Clock, why: str = "") -> Journal:
    """Return the journal that can be the arbiter of a store without conditional create.

    Args:
        store: Store of the destination.
        settings: Settings, with the journal.
        clock: Clock of the journal.
        why: What was seen instead.

    Raises:
        UnsupportedStoreError: This process has no journal.
        JournalUnavailableError: The journal cannot be reached.
    """
    journal = own_journal(settings, clock)
    if journal is None:
        raise UnsupportedStoreError(
            f"{store.url}: this store has no conditional create{f' ({why})' if why else ''}, so a commit "
            "could be decided twice; nothing was changed; name a journal that decides in its place "
            "(LOCKGATE_JOURNAL_URL), the same one in all processes, or use a store that has it "
            f"(`lockgate store check {store.url}` shows the findings)"
        )
    return journal


def _first_seen(store: Store, settings: Settings, clock: Clock) -> StoreRecord:
    report = probe(store, at_once=settings.near_calls)
    for finding in report.findings:
        if finding.ok is False:
            LOG.warning("%s: %s: %s", store.url, finding.name, finding.detail)
    _refuse_unsafe(store, report, settings)
    seen = StoreRecord(capabilities=report.capabilities, probed_s=clock.now_s())
    if report.capabilities.conditional_create:
        return claim(store, layout.PROBED, seen)
    journal = arbiter_for(store, settings, clock, "; ".join(report.without_create))
    claims = _claims(store, journal)
    # Names are claimed only after this record exists: another process has just written it, or it was deleted.
    if set(claims.names()) - {layout.PROBED}:
        kept = (info.key for page in store.pages(layout.ROOT) for info in page)
        if all(key.startswith(PROBES) for key in kept):
            raise _deleted_by_hand(store, journal)
        # Somebody may have deleted only this record: its claim has its bytes.
        known = find(_arbitrated(store, claims), StoreRecord, layout.PROBED)
        if known is not None:
            return known
    LOG.warning("%s: journal %s decides from now on who creates a name there", store.url, journal.url)
    seen = StoreRecord(
        capabilities=report.capabilities,
        probed_s=seen.probed_s,
        arbiter=journal.identity,
        arbiter_url=journal.url,
    )
    return claim(_arbitrated(store, claims), layout.PROBED, seen)


def _refuse_unsafe(store: Store, report: ProbeReport, settings: Settings) -> None:
    remedy = f"`lockgate store check {store.url}` shows all findings"
    for finding in report.refusals:
        raise UnsupportedStoreError(f"{store.url}: {finding.detail}; no job was set up; {remedy}")
    if settings.accept_unsafe_store:
        return
    for finding in report.dangers:
        raise UnsupportedStoreError(
            f"{store.url}: it broke the promise {finding.name!r} ({finding.detail}), so a job could lose "
            f"files or rows; no job was set up; {remedy}; to take that risk, set "
            "LOCKGATE_ACCEPT_UNSAFE_STORE=true"
        )


def _as_known(store: Store, known: StoreRecord, settings: Settings, clock: Clock) -> Store:
    trusted = with_capabilities(store, known.capabilities)
    if known.capabilities.conditional_create:
        return trusted
    journal = arbiter_for(store, settings, clock)
    if journal.identity != known.arbiter:
        raise UnsupportedStoreError(
            f"{store.url}: this store has no conditional create, and journal {known.arbiter[:8]} at "
            f"{known.arbiter_url} decides in its place; this process has journal {journal.identity[:8]} at "
            f"{journal.url}; nothing was changed; set LOCKGATE_JOURNAL_URL to the former, on drivers, Spark "
            "executors, Celery workers and where recovery runs"
        )
    return _arbitrated(trusted, _claims(store, journal))


def _deleted_by_hand(store: Store, journal: Journal) -> ConflictError:
    return ConflictError(
        f"{store.url}: journal {journal.url} has claims of its names, and the store has none of them: the "
        "destination was deleted by hand, or it is on another server that has a bucket of this name; nothing "
        f"was changed; in the first case run `lockgate store forget {store.url}`, in the second use another "
        "journal (LOCKGATE_JOURNAL)"
    )


def _claims(store: Store, journal: Journal) -> Claims:
    from lockgate.storage_core.journal.claims import Claims  # noqa: PLC0415 - SQLAlchemy: half a second

    return Claims(journal, canonical_url(store))


def _arbitrated(store: Store, claims: Claims) -> ArbitratedStore:
    from lockgate.storage_core.commit.setup.arbitrated_store import ArbitratedStore  # noqa: PLC0415 - as above

    return ArbitratedStore(store, claims)


def refuse_unused(destination: str) -> None:
    """Refuse a destination at which no job was ever set up and no upload is open, such as one with a typo.

    Raises:
        DestinationNotFoundError: There is neither.
        ObjectNotFoundError: There is no such bucket.
    """
    store = open_store(destination)
    if any(store.pages(layout.ROOT, page_size=1)) or any(store.upload_pages(page_size=1)):
        return
    raise DestinationNotFoundError(
        f"there is no destination {store.url}: no job was ever set up there and no upload is open; nothing "
        "was done; check the spelling"
    )
