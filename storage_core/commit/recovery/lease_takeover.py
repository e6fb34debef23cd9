"""The lease of a recovery: who settles a job takes it from the driver that is gone.

That driver is fenced from there on, and other recoveries leave the job alone: they would be harmless, and do
the same work. A recovery that dies lapses in its turn, and the next one takes its lease.

Source: journal, "Leases".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.destination.location import canonical_url
from lockgate.storage_core.commit.leases.journal_leases import look_at
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.errors import FencedError, LeaseHeldError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import Journal, Leases, LeaseState, LeaseView
from lockgate.storage_core.journal.entries.leases import TAKES
from lockgate.storage_core.journal.leases.renewer import Renewer
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.settings import Settings

LATER: Final = (FencedError, NotAppliedError, OutcomeUnknownError)
"""A lease that cannot be given back now lapses by itself."""


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
    """Hold a job's lease while it is settled.

    A job that is decided while its driver lives is settled beside that driver: its lease is left to it.

    Args:
        journal: Of this process. If it is not the one that the job names, other recoveries are kept away, but
            no driver is fenced.
        folder: Of the job.
        settings: How long a lease lasts.
        clock: Waits for the next renewal.
        is_decided: Whether the job was found decided: from there on there is only forward, whoever lives.
        dry_run: Take nothing, only find out whether it could be taken.

    Yields:
        A check, which raises `FencedError` once a driver has taken the job over.

    Raises:
        LeaseHeldError: Another recovery is at it; or the job was undecided, and its driver has come back.
        SafeModeError: The journal was restored: nothing is recovered yet.
    """
    resource = job_resource(canonical_url(folder.store), folder.job_id)
    refuse_in_safe_mode(journal, f"recovery of {resource}")
    standing = _look(journal, folder)
    is_driven = standing is not None and standing.state not in TAKES["recover"]
    if is_driven and not is_decided:
        raise LeaseHeldError("its driver has come back since it was looked at; nothing was changed")
    if dry_run or is_driven:
        yield lambda: None
        return
    leases = Leases(journal)
    renewer = Renewer(leases, every_s=settings.lease_renew_s, clock=clock)
    since_s = clock.now_s()
    stamp = leases.take(
        resource,
        renewer.holder,
        purpose="recover",
        soft_s=min(settings.lease_soft_s, settings.lease_hard_s),
        hard_s=settings.lease_hard_s,
        detail="" if standing is None else standing.lease.detail,
    )
    renewer.keep(resource, stamp, since_s=since_s)
    try:
        yield partial(renewer.check, resource, 0.0)
    finally:
        renewer.drop(resource)
        with suppress(*LATER):
            leases.free(resource, stamp)


def _look(journal: Journal, folder: JobFolder) -> LeaseView | None:
    """Return the lease as it stands, on the primary, unless the job is to be left alone."""
    standing = look_at(journal, folder)
    if standing is not None and standing.state is LeaseState.RECOVERING:
        raise LeaseHeldError(
            f"another recovery has held its lease since stamp {standing.lease.stamp}; nothing was changed"
        )
    return standing
