"""`lockgate journal`: where the journal stands, its checkpoints, and what to do when its database is lost."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli.journal import metrics, observers
from lockgate.storage_core.cli.journal.observers import AtLeast
from lockgate.storage_core.cli.render import (
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
from lockgate.storage_core.errors import ConflictError, InvalidInputError, MalformedJournalError

if TYPE_CHECKING:
    from lockgate.storage_core.journal import Journal, Stamp
    from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
    from lockgate.storage_core.journal.checkpoint.restore import Restored
    from lockgate.storage_core.journal.status import Overview
    from lockgate.storage_core.settings import Settings

commands = typer.Typer(
    help="Look after the journal: checkpoints, restore, safe mode, observers.", no_args_is_help=True
)
commands.command("observers")(observers.show)
commands.command("observe")(observers.observe)
commands.command("metrics")(metrics.serve)


@commands.command("status")
def status(*, at_least: AtLeast = "", json: JsonFlag = False) -> None:
    """Show where the journal stands: stamp, epochs, leases, safe mode, the newest checkpoint."""
    from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints  # noqa: PLC0415 - slow to import
    from lockgate.storage_core.journal.observers import configured_reads  # noqa: PLC0415
    from lockgate.storage_core.journal.status import overview  # noqa: PLC0415
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415

    settings = load_settings()
    client = configured_reads(settings, at_least=at_least or None)
    if client is None:
        raise _no_journal()
    with client:
        seen = client.read(lambda reading: overview(reading, open_checkpoints(settings)))
    if json:
        print_json(seen)
    else:
        _show(seen)


@commands.command("checkpoint")
def checkpoint(json: JsonFlag = False) -> None:
    """Store a snapshot of the journal under its stamp; writers are not held up."""
    from lockgate.storage_core.journal.checkpoint.checkpoints import take_checkpoint  # noqa: PLC0415

    journal, checkpoints, _ = _opened()
    with journal.reading() as reading:
        taken, is_new = take_checkpoint(reading, checkpoints)
    if json:
        print_json({"checkpoint": taken, "is_new": is_new})
        return
    said = "" if is_new else " was there already"
    print_line(f"checkpoint {taken.stamp}, {byte_size(taken.size)}, in {checkpoints.store.url}{said}")


@commands.command("verify")
def verify(json: JsonFlag = False) -> None:
    """Prove that entries, folded again, give the checkpoints and the tables; exits with 3 if they do not."""
    from lockgate.storage_core.journal.checkpoint.verify import verify as verify_journal  # noqa: PLC0415

    journal, checkpoints, _ = _opened()
    with journal.reading() as reading, progress_bar() as progress:
        found = verify_journal(reading, checkpoints, progress)
    if json:
        print_json(found)
    else:
        since = "the beginning" if found.since.sequence == 0 else f"checkpoint {found.since}"
        print_line(f"folded {found.entries} entries from {since} to {found.stamp}")
        for stamp in found.checkpoints:
            print_line(f"checkpoint {stamp} holds what they give")
        for finding in found.findings:
            print_line(f"wrong: {finding}")
        print_line(f"{len(found.findings)} findings")
    if found.findings:
        raise typer.Exit(MalformedJournalError.exit_code)


@commands.command("prune")
def prune(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Prune; without it, only say what would go.")] = False,
    json: JsonFlag = False,
) -> None:
    """Drop entries up to the newest verified checkpoint, old request ids and old checkpoints.

    Without --yes only says what would go. Nothing goes that `lockgate journal verify` has not proved.
    """
    from lockgate.storage_core.journal.checkpoint.prune import prune as prune_journal  # noqa: PLC0415

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
        print_line("no checkpoint is verified: no entry may go; run `lockgate journal verify`")
    else:
        print_line(f"{pruned.entries} entries, which checkpoint {pruned.up_to} holds")
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
            metavar="URL", help="The old database, where its entries can be read: they are replayed."
        ),
    ] = "",
    checkpoint: Annotated[
        str, typer.Option(metavar="STAMP", help="From this checkpoint instead of the newest.")
    ] = "",
    in_place: Annotated[
        bool, typer.Option("--in-place", help="The database came back from a backup of its own: only go on.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Restore the journal into the empty database that LOCKGATE_JOURNAL_URL names.

    It begins a new epoch, in safe mode. Stop all services first. Running it again is harmless.
    """
    from lockgate.storage_core.journal import Stamp  # noqa: PLC0415
    from lockgate.storage_core.journal.checkpoint.restore import open_survivor, restore_in_place  # noqa: PLC0415
    from lockgate.storage_core.journal.checkpoint.restore import restore as restore_journal  # noqa: PLC0415

    if in_place and (entries or checkpoint):
        raise InvalidInputError("--in-place takes neither --entries nor --checkpoint; nothing was done")
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
        said = "was restored before" if document.is_repeat else "restored"
        print_line(f"{said} from {origin} and {document.entries} entries after it")
    print_line(f"the journal stands at {stamp}, in safe mode; see that it is right, then run")
    print_line("  lockgate journal leave-safe-mode")


@commands.command("leave-safe-mode")
def leave_safe_mode(json: JsonFlag = False) -> None:
    """Leave safe mode: every holder has its limits anew, recovery and pruning go on."""
    from lockgate.storage_core.journal.safe_mode import leave_safe_mode as leave  # noqa: PLC0415

    journal, _, _ = _opened()
    rearmed = leave(journal)
    if json:
        print_json({"was_in_safe_mode": rearmed is not None, "leases": rearmed})
    elif rearmed is None:
        print_line("the journal is not in safe mode")
    else:
        print_line(f"safe mode is left; {rearmed} leases have their limits anew")


def _opened() -> tuple[Journal, Checkpoints, Settings]:
    from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints  # noqa: PLC0415
    from lockgate.storage_core.journal.process_journal import configured_journal  # noqa: PLC0415
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415

    settings = load_settings()
    journal = configured_journal(settings)
    if journal is None:
        raise _no_journal()
    return journal, open_checkpoints(settings), settings


def _no_journal() -> ConflictError:
    return ConflictError("LOCKGATE_JOURNAL_URL=none: there is no journal to look after; nothing was done")


def _show(seen: Overview) -> None:
    status, newest = seen.status, seen.checkpoint
    safe = "no"
    if status.safe_since_s is not None:
        safe = f"since {moment(status.safe_since_s)}: {status.safe_reason}"
    print_fields(
        [
            ("journal", seen.journal),
            ("at", seen.where),
            ("identity", status.identity),
            ("stamp", status.stamp),
            ("entries", f"{seen.entries} kept, {status.pruned_sequence} pruned"),
            ("safe mode", safe),
            ("checkpoint", None if newest is None else f"{newest.stamp}, {byte_size(newest.size)}"),
            (
                "made",
                None
                if newest is None
                else f"{moment(newest.made_s)}, {age(seen.checkpoint_age_s or 0.0)} ago",
            ),
            ("since then", f"{seen.entries_since_checkpoint} entries"),
        ]
    )
    print_line("")
    print_table(("leases", *seen.leases), [("", *seen.leases.values())], empty="")
    print_line("")
    print_table(
        ("epoch", "began (UTC)", "after entry", "why"),
        [(epoch.epoch, moment(epoch.began_s), epoch.before, epoch.reason) for epoch in seen.epochs],
        empty="",
    )
