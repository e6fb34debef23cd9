"""`lockgate journal`: status, checkpoints, verification, pruning, restore, observers and metrics."""

from __future__ import annotations

import threading
from contextlib import ExitStack, nullcontext, suppress
from itertools import count
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockgate.storage_core.cli.render import (
    AtLeast,
    JsonFlag,
    age,
    byte_size,
    moment,
    print_fields,
    print_json,
    print_line,
    print_table,
    progress_bar,
)
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    JournalUnavailableError,
    LockgateError,
    MalformedJournalError,
    StateLostError,
)
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.journal import Journal, Stamp
    from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
    from lockgate.storage_core.journal.checkpoint.restore import Restored
    from lockgate.storage_core.journal.observers.reading_client import Client
    from lockgate.storage_core.journal.status import Overview
    from lockgate.storage_core.settings import Settings

commands = typer.Typer(
    help="Administer the journal: checkpoints, restore, safe mode, observers.",
    no_args_is_help=True,
)

REFRESH_S: Final = 5.0
"""Interval of comparisons of observers with the primary; other metrics are read at each scrape."""
CHECKPOINTS_EVERY: Final = 12
"""The checkpoints are listed once in so many intervals."""


@commands.command("status")
def status(*, at_least: AtLeast = "", json: JsonFlag = False) -> None:
    """Show the journal's stamp, epochs, leases, safe mode and newest checkpoint."""
    from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints
    from lockgate.storage_core.journal.status import overview

    settings = load_settings()
    with _journal_reads(at_least) as client:
        found = client.read(lambda reading: overview(reading, open_checkpoints(settings)))
    if json:
        print_json(found)
    else:
        _show(found)


@commands.command("checkpoint")
def checkpoint(json: JsonFlag = False) -> None:
    """Store a snapshot of the journal without blocking writers."""
    from lockgate.storage_core.journal.checkpoint.checkpoints import take_checkpoint

    journal, checkpoints, _ = _opened()
    with journal.reading() as reading:
        taken, is_new = take_checkpoint(reading, checkpoints)
    if json:
        print_json({"checkpoint": taken, "is_new": is_new})
        return
    note = "" if is_new else " existed already"
    print_line(f"checkpoint {taken.stamp}, {byte_size(taken.size)}, in {checkpoints.store.url}{note}")


@commands.command("verify")
def verify(json: JsonFlag = False) -> None:
    """Check pages, replay entries, compare with checkpoints and tables; exits with 3 if they differ."""
    from lockgate.storage_core.journal.checkpoint.verify import verify as verify_journal

    journal, checkpoints, _ = _opened()
    with journal.reading() as reading, progress_bar() as progress:
        found = verify_journal(reading, checkpoints, progress)
    if json:
        print_json(found)
    else:
        since = "the beginning" if found.since.sequence == 0 else f"checkpoint {found.since}"
        print_line(f"replayed {found.entries} entries from {since} to {found.stamp}")
        for stamp in found.checkpoints:
            print_line(f"checkpoint {stamp} is equal to their result")
        print_line(
            "pages and indexes were checked"
            if found.pages_checked
            else "pages and indexes were not checked: let a superuser run `pg_amcheck`"
        )
        for finding in found.findings:
            print_line(f"wrong: {finding}")
        print_line(f"{len(found.findings)} findings")
    if found.findings:
        raise typer.Exit(MalformedJournalError.exit_code)


@commands.command("prune")
def prune(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; otherwise only report them.")] = False,
    json: JsonFlag = False,
) -> None:
    """Delete entries up to the newest verified checkpoint, old request ids and old checkpoints.

    Without --yes only report them. Only entries that `lockgate journal verify` has verified are deleted.
    """
    from lockgate.storage_core.journal.checkpoint.prune import prune as prune_journal

    journal, checkpoints, settings = _opened()
    with progress_bar() as progress:
        pruned = prune_journal(
            journal,
            checkpoints,
            kept=settings.checkpoints_kept,
            request_retention_s=settings.request_retention_s,
            dry_run=not yes,
            progress=progress,
        )
    if json:
        print_json(pruned)
        return
    if pruned.up_to is None:
        print_line("no checkpoint is verified: no entry may be deleted; run `lockgate journal verify`")
    else:
        print_line(f"{pruned.entries} entries, which checkpoint {pruned.up_to} contains")
    print_line(f"{pruned.requests} request ids older than {settings.request_retention_s:g} s")
    for stamp in pruned.checkpoints:
        print_line(f"checkpoint {stamp}")
    if pruned.is_dry_run:
        print_line("a dry run: nothing was pruned; add --yes")


@commands.command("restore")
def restore(
    *,
    entries: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Old database, if its entries can be read: replay them after the checkpoint."
        ),
    ] = "",
    checkpoint: Annotated[
        str, typer.Option(metavar="STAMP", help="Use this checkpoint instead of the newest.")
    ] = "",
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Keep a database that was restored from a database backup.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Restore the journal into the empty database at LOCKGATE_JOURNAL_URL.

    Begins a new epoch in safe mode. Stop all services before. Repeating the command is harmless.
    """
    from lockgate.storage_core.journal import Stamp
    from lockgate.storage_core.journal.checkpoint.restore import open_survivor, restore_in_place
    from lockgate.storage_core.journal.checkpoint.restore import restore as restore_journal

    if in_place and (entries or checkpoint):
        raise InvalidInputError(
            "--in-place cannot be combined with --entries or --checkpoint; nothing was done"
        )
    journal, checkpoints, settings = _opened()
    if in_place:
        stamp = restore_in_place(journal, checkpoints)
        document: Restored | dict[str, Stamp] = {"stamp": stamp}
    else:
        source = open_survivor(entries, settings.journal) if entries else nullcontext()
        wanted = Stamp.parse(checkpoint) if checkpoint else None
        with source as survivor, progress_bar() as progress:
            document = restore_journal(
                journal, checkpoints, source=survivor, checkpoint=wanted, progress=progress
            )
        stamp = document.stamp
    if json:
        print_json(document)
        return
    if not isinstance(document, dict):
        origin = "the beginning" if document.checkpoint is None else f"checkpoint {document.checkpoint}"
        done = "was restored before" if document.is_repeat else "restored"
        print_line(f"{done} from {origin} and {document.entries} entries after it")
    print_line(f"the journal is at {stamp}, in safe mode; check that it is correct, then run")
    print_line("  lockgate journal leave-safe-mode")


@commands.command("leave-safe-mode")
def leave_safe_mode(
    reason: Annotated[str, typer.Argument(help="Reason to drop; needed if there are several.")] = "",
    *,
    json: JsonFlag = False,
) -> None:
    """Drop a reason for safe mode. The last one ends it: the time limits of all leases restart."""
    from lockgate.storage_core.journal.safe_mode import leave_safe_mode as leave

    journal, _, _ = _opened()
    rearmed = leave(journal, reason)
    remaining = journal.status().safe_reasons
    if json:
        print_json({"was_in_safe_mode": rearmed is not None, "leases": rearmed, "remaining": remaining})
    elif rearmed is None:
        print_line("the journal is not in safe mode")
    elif remaining:
        print_line(f"the journal is still in safe mode: {journal.status().why_safe}")
    else:
        print_line(f"left safe mode; restarted the time limits of {rearmed} leases")


@commands.command("enter-safe-mode")
def enter_safe_mode(
    why: Annotated[str, typer.Argument(help="Text that `status` and errors show.")],
    *,
    json: JsonFlag = False,
) -> None:
    """Enter safe mode for the reason `operator`: nothing is recovered, pruned or deleted."""
    from lockgate.storage_core.journal.safe_mode import add_operators_reason

    journal, _, _ = _opened()
    add_operators_reason(journal, why)
    status = journal.status()
    if json:
        print_json({"reasons": status.safe_reasons})
    else:
        print_line(f"the journal is in safe mode: {status.why_safe}")


@commands.command("observers")
def observers(json: JsonFlag = False) -> None:
    """Show how far each observer is behind the primary, and why it is not read."""
    with _journal_reads() as client:
        found = client.observers()
    if json:
        print_json(found)
        return
    print_table(
        ("observer", "stamp", "behind", "lag", "why it is not read"),
        [
            (
                status.name,
                status.stamp,
                None if status.behind_entries is None else f"{status.behind_entries} entries",
                None if status.lag_s is None else f"{status.lag_s:.3f} s",
                status.why_down,
            )
            for status in found
        ],
        empty="no observers: every read goes to the primary; see LOCKGATE_OBSERVER_URLS",
    )


@commands.command("metrics")
def metrics(
    *,
    port: Annotated[int, typer.Option(help="Port to bind; 0: any free port.", min=0, max=65_535)] = 9464,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
) -> None:
    """Serve the journal's metrics for Prometheus until stopped: jobs, blobs, entries, leases, observers' lag.

    Group sizes, write times, waits and fallbacks are counted in each process.
    """
    from lockgate.storage_core.blobs.registry.queries import blob_metrics
    from lockgate.storage_core.commit.registry.needs import job_metrics
    from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints
    from lockgate.storage_core.journal.metrics import record_checkpoint
    from lockgate.storage_core.journal.metrics_endpoint import serve_metrics

    checkpoints, families = open_checkpoints(load_settings()), (job_metrics, blob_metrics)
    with _journal_reads() as client, ExitStack() as stack:
        try:
            endpoint = serve_metrics(client.journal, port=port, host=host, families=families)
            url = stack.enter_context(endpoint)
        except OSError as error:
            raise InvalidInputError(f"--host {host} --port {port}: {error.strerror}; name another") from None
        print_line(url)
        stopped = threading.Event()
        for turn in count():
            with suppress(JournalUnavailableError, StateLostError):  # reported as `up` 0
                client.observers()
            if turn % CHECKPOINTS_EVERY == 0:
                with suppress(LockgateError):  # the age of the last one that was seen grows
                    newest = checkpoints.newest()
                    record_checkpoint(client.journal.name, None if newest is None else newest.made_s)
            stopped.wait(REFRESH_S)


def _journal_reads(at_least: str = "") -> Client:
    """Return a client for reads of the journal, of a state not older than a token or stamp."""
    from lockgate.storage_core.journal.observers.process_reader import configured_reads

    client = configured_reads(load_settings(), at_least=at_least)
    if client is None:
        raise _no_journal()
    return client


def _no_journal() -> ConflictError:
    """Return the error of a command that needs a journal."""
    return ConflictError("LOCKGATE_JOURNAL_URL=none: there is no journal; nothing was done")


def _opened() -> tuple[Journal, Checkpoints, Settings]:
    from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints
    from lockgate.storage_core.journal.process_journal import configured_journal

    settings = load_settings()
    journal = configured_journal(settings)
    if journal is None:
        raise _no_journal()
    return journal, open_checkpoints(settings), settings


def _show(found: Overview) -> None:
    from lockgate.storage_core.journal.read.snapshot_read import COUNTED

    status, newest = found.status, found.checkpoint
    safe = "no"
    if status.safe_since_s is not None:
        safe = f"since {moment(status.safe_since_s)}: {status.why_safe}"
    print_fields(
        [
            ("journal", found.journal),
            ("at", found.where),
            ("identity", status.identity),
            ("stamp", status.stamp),
            ("entries", f"{found.entries} kept, {status.pruned_sequence} pruned"),
            ("safe mode", safe),
            ("checkpoint", None if newest is None else f"{newest.stamp}, {byte_size(newest.size)}"),
            (
                "created",
                None
                if newest is None
                else f"{moment(newest.made_s)}, {age(found.checkpoint_age_s or 0.0)} ago",
            ),
            ("since then", f"{found.entries_since_checkpoint} entries"),
        ]
    )
    print_line("")
    counted = "leases" if sum(found.leases.values()) < COUNTED else f"first {COUNTED} leases"
    print_table((counted, *found.leases), [("", *found.leases.values())], empty="")
    print_line("")
    print_table(
        ("epoch", "began (UTC)", "after entry", "why"),
        [(epoch.epoch, moment(epoch.began_s), epoch.before, epoch.reason) for epoch in found.epochs],
        empty="",
    )
