"""`lockgate jobs log`: the event log of a job, also while other processes write it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lockgate.storage_core.cli.render import JOB_HELP, JsonFlag, print_json, print_line, standard_output
from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.commit.job_events import JobEvent
    from lockgate.storage_core.event_log.merged_events import MergedLog

STATES: Final = {
    "open": "being written, or its process has ended without closing it",
    "cut": "closed by a recovery: its process may have had more lines",
}


def show(
    job: Annotated[list[str], typer.Argument(metavar="[DEST] JOB", help=JOB_HELP)],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the job has ended.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Print the event log of a job: phases, task commits, completed shards, recoveries.

    With --follow and --json, each line is a JSON document. Lines of different processes are ordered by their
    clocks.
    """
    from lockgate.storage_core.cli.job_index import locate
    from lockgate.storage_core.commit.open_or_attach import attach_job
    from lockgate.storage_core.commit.records.phase import TERMINAL
    from lockgate.storage_core.event_log.merged_events import MergedLog
    from lockgate.storage_core.satellite.open_overlay import open_files

    destination, job_id = locate(job)
    attached = attach_job(destination, job_id)
    with open_files(load_settings()) as files:
        log = MergedLog(files, job_id, attached.short_id)
        if follow:
            for events in log.follow(lambda: attached.phase() in TERMINAL, SystemClock()):
                _print(events, json=json)
        elif json:
            lines = log.read()
            print_json({"job_id": job_id, "files": log.files, "lines": lines})
            return
        else:
            _print(log.read(), json=False)
        if not json:
            _print_states(log)


def _print(events: Iterable[JobEvent], *, json: bool) -> None:
    for event in events:
        if json:
            print_line(msgspec.json.encode(event).decode())
            continue
        at = datetime.fromtimestamp(event.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        print_line(f"{at}Z  {event.role} {event.process}  {event.text}")
    with standard_output():
        sys.stdout.flush()


def _print_states(log: MergedLog) -> None:
    if not log.files:
        print_line("the job has no event log")
    for file in log.files:
        if file.why_not:
            print_line(f"{file.name}: it could not be read: {file.why_not}")
        elif file.state in STATES:
            print_line(f"{file.name}: {STATES[file.state]}")
