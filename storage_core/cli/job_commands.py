"""`lockgate jobs`: list, show, commit, abort and recover jobs."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lockgate.storage_core.cli import job_log_command, job_recovery_commands
from lockgate.storage_core.cli.job_recovery_commands import drop_blobs
from lockgate.storage_core.cli.render import (
    DESTINATION_HELP,
    JOB_HELP,
    AtLeast,
    JsonFlag,
    byte_size,
    counted,
    moment,
    print_fields,
    print_json,
    print_json_list,
    print_line,
    print_table,
    progress_bar,
)
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.ids import is_job_id

if TYPE_CHECKING:
    from lockgate.storage_core.cli.job_index import IndexedJob
    from lockgate.storage_core.commit.job_summary import JobSummary
    from lockgate.storage_core.commit.publish.success_file import SuccessSummary
    from lockgate.storage_core.commit.records.job_record import JobArtefacts
    from lockgate.storage_core.commit.records.log_records import Receipt

commands = typer.Typer(help="List, commit, abort and recover jobs.", no_args_is_help=True)

SHOWN: Final = 1_000
"""Jobs in one table."""
JobWords = Annotated[list[str], typer.Argument(metavar="[DEST] JOB", help=JOB_HELP)]


@commands.command("list")
def list_all(
    destination: Annotated[
        str | None, typer.Argument(metavar="[DEST]", help=DESTINATION_HELP, show_default=False)
    ] = None,
    *,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"List at most so many jobs; by default {SHOWN}, with --json all."),
    ] = None,
    after: Annotated[
        str, typer.Option(metavar="[DEST#]JOB", help="Begin after this job; without DEST give both.")
    ] = "",
    at_least: AtLeast = "",
    json: JsonFlag = False,
) -> None:
    """List the jobs of a destination, or those in the journal, page by page, with phases and leases."""
    if destination is None:
        _list_index(at_least, after, limit, json=json)
        return
    if at_least:
        raise InvalidInputError(
            "--at-least applies to the journal, but a destination's jobs are listed from its store"
        )
    from lockgate.storage_core.commit.job_summary import has_deleted_jobs, list_jobs
    from lockgate.storage_core.commit.setup.capabilities import refuse_unused

    refuse_unused(destination)
    start = after.removeprefix(f"{destination}#")
    if start and not is_job_id(start):
        raise InvalidInputError(f"--after {after}: give a job id, as the end of the previous page prints it")
    if json:
        print_json_list(islice(list_jobs(destination, after=start), limit))
        return
    summaries = list(islice(list_jobs(destination, after=start), limit or SHOWN))
    print_table(
        ("job", "phase", "lease", "created (UTC)", "mode", "files", "rows", "note"),
        [_summary_row(summary) for summary in summaries],
        empty=f"no {'more ' if start else ''}jobs at {destination}",
    )
    if len(summaries) == (limit or SHOWN):
        _print_more(f"{destination} --after {summaries[-1].job_id}")
    elif has_deleted_jobs(destination):
        print_line("Older ended jobs may be left out: sweeps delete their folders.")


@commands.command("show")
def show(job: JobWords, json: JsonFlag = False) -> None:
    """Show all records of a job in the store. Exits with 3 if one cannot be read."""
    from lockgate.storage_core.cli.job_index import locate
    from lockgate.storage_core.commit.job_view import TaskCount, lease_of
    from lockgate.storage_core.commit.open_or_attach import attach_job
    from lockgate.storage_core.commit.publish.commit_context import read_file_results
    from lockgate.storage_core.commit.publish.success_file import find_success
    from lockgate.storage_core.commit.records.job_folder import JobFolder

    destination, job_id = locate(job)
    attached = attach_job(destination, job_id)
    record, folder = attached.record, JobFolder(attached.store, attached.job_id)
    succeeded, failed = folder.ended()
    ended = succeeded or failed
    phase, decision, receipt, report = attached.phase(), folder.decision(), attached.receipt, folder.report()
    job_attempt, tasks, lease = None, None, None
    if ended is None:
        job_attempt, lease, expected = attached.job_attempt, lease_of(attached), attached.expected()
        tasks = TaskCount(
            committed=len({found.task_id for found in attached.pending_sets()}),
            expected=None if expected is None else len(expected.tasks),
        )
    success = find_success(attached.store)
    success = success if success is not None and success.job_id == job_id else None
    if json:
        if report is not None:
            report = msgspec.structs.replace(report, shards=(), files=tuple(read_file_results(folder)))
        print_json(
            {
                "record": record,
                "phase": phase,
                "lease": lease,
                "job_attempt": job_attempt,
                "tasks": tasks,
                "decision": decision,
                "receipt": receipt,
                "ended": ended,
                "report": report,
                "success": success,
            }
        )
    else:
        counts = report and ", ".join(f"{n} {outcome}" for outcome, n in report.counts.items())
        print_fields(
            [
                ("job", record.job_id),
                ("short id", record.short_id),
                ("description", record.description or None),
                ("phase", phase),
                ("lease", lease),
                ("created", f"{moment(record.created_s)} by {record.created_by}"),
                ("mode", record.spec.mode),
                ("committer", record.spec.committer),
                ("audit", "required" if record.spec.audit else None),
                ("on lapse", record.spec.on_lapse),
                ("job attempt", job_attempt),
                ("journal", record.journal.partition("@")[2] or None),
                ("artefacts", record.spec.artefacts and _artefact_names(record.spec.artefacts)),
                ("tasks", tasks and f"{tasks.committed} of {tasks.text} committed"),
                ("decision", decision and f"{decision.verdict} at {moment(decision.decided_s)}"),
                ("reason", (decision and decision.reason) or None),
                ("ended", ended and f"{ended.ended} at {moment(ended.ended_s)}"),
                ("files", counts),
            ]
        )
        if receipt is not None:
            print_line("")
            _print_receipt(receipt, report.counts.get("undeleted", 0) if report else 0)
        if success is not None:
            print_line("")
            _print_success(destination, success)


@commands.command("commit")
def commit(
    job: JobWords,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Commit even if its driver is alive, and fence the driver.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Commit even if no task has committed.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Commit a job whose tasks have committed; can be repeated safely."""
    from lockgate.storage_core.cli.job_index import locate
    from lockgate.storage_core.commit.job_view import lease_of
    from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
    from lockgate.storage_core.commit.open_or_attach import attach_job

    destination, job_id = locate(job)
    with progress_bar() as progress:
        attached = attach_job(destination, job_id, progress=progress)
        alive = {JobLeaseState.LIVE, JobLeaseState.OVERDUE}
        if not take_over and attached.receipt is None and lease_of(attached) in alive:
            raise ConflictError(
                f"job {job_id} at {attached.destination}: its driver may be alive and commit it; nothing "
                "was done; wait for it, or take the job over with --take-over"
            )
        receipt = attached.commit(allow_empty=allow_empty)
    _drop_artefacts(attached.spec.artefacts)
    if json:
        print_json(receipt)
    else:
        _print_receipt(receipt, receipt.undeleted_files)


@commands.command("abort")
def abort(
    job: JobWords,
    reason: Annotated[str, typer.Option(help="Reason, recorded with the decision.")] = "by hand",
    revert: Annotated[
        bool, typer.Option("--revert", help="Also a job whose commit is decided and cannot be completed.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Abort an undecided job and delete everything that it wrote; a published job is never aborted."""
    from lockgate.storage_core.cli.job_index import locate
    from lockgate.storage_core.commit.open_or_attach import attach_job
    from lockgate.storage_core.commit.records.phase import JobPhase

    destination, job_id = locate(job)
    with progress_bar() as progress:
        attached = attach_job(destination, job_id, progress=progress)
        phase = attached.revert(reason) if revert else attached.abort(reason)
    _drop_artefacts(attached.spec.artefacts)
    if phase not in {JobPhase.ABORTING, JobPhase.FAILED}:
        raise ConflictError(
            f"job {job_id} at {destination} is {phase}: its commit is decided, so it was not aborted; "
            f"`lockgate jobs recover {destination} {job_id}` finishes it; if the store never lets it, add "
            "--revert, unless it is published"
        )
    if json:
        print_json({"job_id": job_id, "phase": phase})
    else:
        print_line(f"{job_id} is {phase}")


@commands.command("quarantine")
def quarantine(
    job: JobWords,
    reason: Annotated[str, typer.Option(help="Reason, recorded with the decision.")] = "by hand",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only report.")] = False,
    json: JsonFlag = False,
) -> None:
    """Set a job aside that blocks its destination because its records cannot be read.

    Without --yes nothing is changed. The job loses its turn and is never published; its records, uploads and
    files are kept until `lockgate jobs abort`. Its name is free for a new run. Exits with 8 if the records
    can be read, if it has published or ended, or if its driver is alive.
    """
    from lockgate.storage_core.cli.job_index import locate
    from lockgate.storage_core.commit.recovery.quarantine import quarantine_job

    destination, job_id = locate(job)
    found = quarantine_job(destination, job_id, reason=reason, dry_run=not yes)
    if json:
        print_json(found)
        return
    print_fields(
        [
            ("job", f"{found.job_id} at {found.destination}"),
            *[("unreadable", fault) for fault in found.unreadable],
            ("turn", None if found.turn is None else f"{found.turn}, which ends without a publication"),
            *[("kept", key) for key in found.kept],
        ]
    )
    print_line("in quarantine" if found.done else "a dry run: nothing was changed; add --yes")


commands.command("log")(job_log_command.show)
commands.command("recover")(job_recovery_commands.recover)
commands.command("rescan")(job_recovery_commands.rescan)


def _artefact_names(artefacts: JobArtefacts) -> str:
    return f"{', '.join(artefacts.names)} (blobs of {artefacts.job_id})"


def _drop_artefacts(artefacts: JobArtefacts | None) -> None:
    if artefacts is not None:
        drop_blobs(artefacts.job_id)


def _list_index(at_least: str, after: str, limit: int | None, *, json: bool) -> None:
    from lockgate.storage_core.cli.job_index import after_job, index_reads, read_pages

    start = after_job(after)
    with index_reads("name a destination", at_least) as reads:
        if json:
            pages = read_pages(reads, start, limit)
            first = next(pages)
            head = {"journal": first.journal, "stamp": first.stamp, "told_s": first.told_s}
            print_json_list((job for page in chain([first], pages) for job in page.jobs), head, "jobs")
            return
        pages_shown = list(read_pages(reads, start, limit or SHOWN))
    index, jobs = pages_shown[0], [job for page in pages_shown for job in page.jobs]
    print_table(
        ("job", "destination", "phase", "lease", "set up (UTC)", "updated (UTC)", "mode"),
        [_index_row(found) for found in jobs],
        empty="the journal has no jobs" if start is None else "the journal has no more jobs",
    )
    updated = "never" if index.told_s is None else f"at {moment(index.told_s)}"
    print_line("")
    print_line(
        f"This is an index of the stores, in journal {index.journal} at {index.stamp}, last updated "
        f"{updated}; `lockgate jobs rescan DEST` rebuilds it."
    )
    if len(jobs) == (limit or SHOWN):
        last = jobs[-1].job
        _print_more(f"--after '{last.destination}#{last.job_id}'")


def _print_more(arguments: str) -> None:
    print_line(f"There may be more: `lockgate jobs list {arguments}`.")


def _index_row(found: IndexedJob) -> tuple[object, ...]:
    job = found.job
    return (
        job.job_id,
        job.destination,
        job.phase,
        found.lease,
        moment(job.set_up_s),
        moment(job.changed_s),
        job.mode,
    )


def _summary_row(summary: JobSummary) -> tuple[object, ...]:
    record, receipt = summary.record, summary.receipt
    return (
        summary.job_id,
        summary.phase or "unreadable",
        None if summary.has_ended else summary.lease,
        None if record is None else moment(record.created_s),
        None if record is None else record.spec.mode,
        None if receipt is None else receipt.files,
        None if receipt is None else receipt.rows,
        summary.detail,
    )


def _print_receipt(receipt: Receipt, undeleted: int) -> None:
    print_fields(
        [
            ("published", f"{moment(receipt.published_s)} in turn {receipt.turn}, mode {receipt.mode}"),
            ("files", receipt.files),
            ("rows", "unknown" if receipt.rows is None else receipt.rows),
            ("size", byte_size(receipt.size)),
            ("removed", counted(receipt.removed_files, "file") if receipt.removed_files else None),
            ("not deleted", f"{undeleted} of these; recovery tries again" if undeleted else None),
            ("tables", receipt.tables_behind or None),
            ("plan", receipt.plan),
        ]
    )


def _print_success(destination: str, success: SuccessSummary) -> None:
    metrics = ", ".join(f"{name} {count}" for name, count in success.metrics.items())
    shown = (
        f"{len(success.filenames)} of {success.files} files"
        if success.omitted
        else f"all files ({success.files})"
    )
    print_fields(
        [
            ("_SUCCESS", f"lists {shown}"),
            ("all files", f"{destination.rstrip('/')}/{success.log} and its shards"),
            ("digest", success.listing_digest),
            ("started", moment(success.started_s)),
            ("took", f"{success.duration_s:.1f} s"),
            ("finished on", success.hostname),
            ("metrics", metrics),
        ]
    )
