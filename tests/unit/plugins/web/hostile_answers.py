"""Answers of the API for tests of the pages: every field is filled, and every text is hostile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import pytest

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.answers import Model, Page
from lockgate.plugins.web.api.blobs import BlobJobRow, BlobRow
from lockgate.plugins.web.api.charts import Series
from lockgate.plugins.web.api.destinations import DestinationDetail, DestinationRow
from lockgate.plugins.web.api.job import AuditResult, FailedExpectation, JobDetail
from lockgate.plugins.web.api.job_files import Attempt, JobFile, JobPlan
from lockgate.plugins.web.api.job_log import JobLog, LogFile
from lockgate.plugins.web.api.job_steps import Step
from lockgate.plugins.web.api.job_summary import Possible
from lockgate.plugins.web.api.jobs import JobCounts, JobRow, Origin
from lockgate.plugins.web.api.journal import CheckpointRow, JournalDetail, ObserverRow
from lockgate.plugins.web.api.turn import Turn
from lockgate.plugins.web.api.uploads import UploadOwners, UploadRow
from lockgate.plugins.web.pages import routes
from lockgate.storage_core.errors import ObjectNotFoundError

AT_S = 1_795_000_000.0
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J\\u202e"

M = TypeVar("M", bound=Model)


def filled(kind: type[M], **changes: Any) -> M:
    """Return an answer, or a dataclass in one, with a value in each field."""
    if is_dataclass(kind):
        values = {name: _value(part) for name, part in get_type_hints(kind).items()}
    else:
        values = {name: _value(field.annotation) for name, field in kind.model_fields.items()}
    return kind(**{**values, **changes})


def _value(kind: Any) -> Any:
    parts = get_args(kind)
    if get_origin(kind) in {Union, UnionType}:
        return _value(parts[0])
    if get_origin(kind) is Literal:
        return parts[0]
    if get_origin(kind) is tuple:
        return (_value(parts[0]),)
    if get_origin(kind) is dict:
        return {HOSTILE: 7}
    if is_dataclass(kind) or issubclass(kind, Model):
        return filled(kind)
    return {str: HOSTILE, int: 7, float: AT_S, bool: True}[kind]


def host(offers: Iterable[str] = (), **changes: Any) -> Host:
    return Host(
        may_read=lambda: None,
        may_act={},
        offers=lambda _: frozenset(offers),  # type: ignore[arg-type]
        user=lambda _: "tester",
        **{"actions": object() if offers else None, **changes},  # type: ignore[arg-type]
    )


def row(job_id: str, **changes: Any) -> JobRow:
    return filled(JobRow, **{"job_id": job_id, "needs": "nothing", "needs_why": "", **changes})


def steps(*states: str) -> tuple[Step, ...]:
    names = ("set up", "writing", "committed tasks", "audited", "decided", "published", "ended")
    pairs = zip(names, states, strict=True)
    return tuple(Step(name=name, state=state, at_s=AT_S, text=HOSTILE) for name, state in pairs)  # type: ignore[arg-type]


RUN = Origin(dag_id="sales", run_id="scheduled__2026-11-18", task_id="write", map_index=2)
STUCK = row(
    "job-2", origin=RUN, phase="committing", needs="you", needs_why="its lease has lapsed", ended_s=None
)
DETAILS = {
    detail.row.job_id: detail
    for detail in (
        filled(JobDetail, row=row("job-1"), actions=()),
        filled(
            JobDetail,
            row=STUCK,
            steps=steps("done", "done", "done", "skipped", "done", "now", "todo"),
            actions=(
                Possible(action="recover", is_allowed=True, text="Publishes the files of the plan."),
                Possible(action="abort", is_allowed=False, text="the commit is decided"),
            ),
            receipt=None,
            audit=AuditResult(is_required=True, verdict=None, decided_s=None),
        ),
        filled(
            JobDetail,
            row=row("job-4", phase="failed"),
            receipt=None,
            audit=filled(
                AuditResult,
                failing=(
                    FailedExpectation(
                        expectation="expect_x", column=None, text="31 are below 0", samples=("-3.5", HOSTILE)
                    ),
                ),
            ),
        ),
    )
}


def series(name: str) -> Series:
    values = tuple(None if i % 9 == 5 else 9.0 * (1 + i) for i in range(30))
    at_s = tuple(AT_S - 86_400 * (30 - i) for i in range(30))
    return Series(
        name=name,  # type: ignore[arg-type]
        title=f"The {name}",
        unit={"bytes": "bytes", "rows": "rows"}.get(name, "s"),
        interval_s=86_400,
        at_s=at_s,
        values=values,
    )


def _detail(_reads: object, _host: object, job_id: str, _destination: object) -> JobDetail:
    if job_id not in DETAILS:
        raise ObjectNotFoundError(f"there is no job {job_id}; nothing was read")
    return DETAILS[job_id]


ANSWERS: dict[str, Any] = {
    "job_page": Page(items=(STUCK, row("job-1", origin=RUN), filled(JobRow)), next_after="next+key"),
    "job_counts": filled(JobCounts, needs_you=1, empty_why="", recovery_stopped="", first=(STUCK,)),
    "run_page": filled(Page[JobRow]),
    "job_detail": _detail,
    "job_attempts": Page(items=tuple(filled(Attempt, counts=counts) for counts in (True, False, None))),
    "job_files": Page(items=(filled(JobFile, state="lost"), filled(JobFile, size_bytes=None, rows=None))),
    "job_plan": filled(JobPlan),
    "job_log": filled(JobLog, files=(LogFile(name=HOSTILE, state="cut"),)),
    "destination_rows": filled(Page[DestinationRow]),
    "destination_detail": filled(DestinationDetail),
    "destination_log": Page(
        items=(filled(Turn, no_revert=""), filled(Turn, verdict=None, origin=None, removed_rows=None))
    ),
    "open_uploads": Page(items=(filled(UploadRow), filled(UploadRow, owner=None, size_bytes=None))),
    "upload_owners": filled(UploadOwners),
    "blob_jobs": Page(items=(filled(BlobJobRow), filled(BlobJobRow, job_id=None, destination=None))),
    "blobs_of_job": Page(items=(filled(BlobRow), filled(BlobRow, name="", goes_s=None, owners=()))),
    "journal_detail": filled(JournalDetail),
    "observers": Page(items=(filled(ObserverRow), filled(ObserverRow, stamp=None, lag_s=None))),
    "checkpoints": filled(Page[CheckpointRow]),
    "chart": lambda _reads, name, *_: series(name),
}
"""Answer, or fake, of each function that the pages call, by its name."""


def answer(patch: pytest.MonkeyPatch, **answers: Any) -> None:
    """Let the functions of the API return these answers, or raise them."""
    for name, given in answers.items():

        def found(*arguments: Any, given: Any = given) -> Any:
            if isinstance(given, Exception):
                raise given
            return given(*arguments) if callable(given) else given

        patch.setattr(routes, name, found)
