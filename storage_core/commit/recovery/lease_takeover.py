"""Take over a job's lease for the time of its recovery.

The previous driver is fenced, and other recoveries leave the job alone, so that they do not repeat the work.
If a recovery dies, its lease lapses, and the next recovery takes it.

Source: journal, "Leases".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.leases.journal_leases import look_at
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.errors import FencedError, LeaseHeldError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import Journal, Leases, LeaseState
from lockgate.storage_core.journal.leases.renewer import Renewer
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.open_store import canonical_url

RELEASE_ERRORS: Final = (FencedError, NotAppliedError, OutcomeUnknownError)
"""Errors that are ignored when the lease is released: it lapses later."""


@contextmanager
def recovery_lease(
    journal: Journal,
    folder: JobFolder,
    *,
    settings: Settings,
    clock: Clock,
    is_decided: bool = False,
    dry_run: bool = False,
) -> Iterator[Callable[[], None]]:
    """Hold a job's lease while it is recovered.

    If the job is decided and its driver is alive, the driver keeps the lease: both may roll the job forward.

    Args:
        journal: Journal of this process. If the job names another journal, this lease keeps other recoveries
            away, but it does not fence the driver.
        folder: Folder of the job.
        settings: Settings, with the duration of a lease.
        clock: Clock for renewals.
        is_decided: Whether the job is decided, so that any process may roll it forward.
        dry_run: Do not take the lease, only check that it could be taken.

    Yields:
        A function that raises `FencedError` if a driver has taken the job over.

    Raises:
        LeaseHeldError: Another recovery has the lease; or the job is undecided, and its driver is back.
        SafeModeError: The journal was restored and is in safe mode.
    """
    resource = job_resource(canonical_url(folder.store), folder.job_id)
    refuse_in_safe_mode(journal, f"recovery of {resource}")
    current = look_at(journal, folder)
    is_driven = current is not None and current.lapses_in_s > 0
    if current is not None and current.state is LeaseState.RECOVERING and is_driven:
        raise LeaseHeldError(
            f"another recovery has held its lease since stamp {current.lease.stamp}; nothing was changed"
        )
    would_be_watched = dry_run and current is not None and current.is_overdue
    if is_driven and not is_decided and not would_be_watched:
        raise LeaseHeldError("its driver has taken its lease again; nothing was changed")
    if dry_run or is_driven:
        yield lambda: None
        return
    leases = Leases(journal)
    renewer = Renewer(leases.renew, every_s=settings.lease_renew_s, clock=clock)
    since_s = clock.monotonic_s()
    stamp = leases.take(
        resource,
        renewer.holder,
        purpose="recover",
        soft_s=min(settings.lease_soft_s, settings.lease_hard_s),
        hard_s=settings.lease_hard_s,
        detail="" if current is None else current.lease.detail,
        seen=None if current is None else current.lease,
    )
    try:
        renewer.keep(resource, stamp, since_s=since_s)
        yield partial(renewer.check, resource, 0.0)
    finally:
        renewer.drop(resource)
        with suppress(*RELEASE_ERRORS):
            leases.free(resource, stamp)
