"""Hand-made answers of the API, for tests of the pages: every field is filled, and names are hostile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.etags import EtagMiddleware
from lockgate.plugins.web.headers import HeadersMiddleware
from lockgate.plugins.web.models.charts import Series
from lockgate.plugins.web.models.destinations import ColumnType, DestinationDetail, DestinationRow, Turn
from lockgate.plugins.web.models.event_log import JobLog, LogFile, LogLine, Recovery
from lockgate.plugins.web.models.jobs import (
    Attempt,
    AuditResult,
    FailedExpectation,
    JobCounts,
    JobDetail,
    JobFile,
    JobPlan,
    JobRow,
    Origin,
    Possible,
    PublishedJob,
    Step,
)
from lockgate.plugins.web.models.journal import CheckpointRow, JournalDetail, ObserverRow, SafeModeReason
from lockgate.plugins.web.models.model import Model, Page
from lockgate.plugins.web.models.storage import (
    BlobJobRow,
    BlobRow,
    UploadOwner,
    UploadOwners,
    UploadRow,
    UploadTotals,
)
from lockgate.plugins.web.pages.routes import page_routes
from lockgate.plugins.web.problems import answer_problems

AT_S = 1_795_000_000.0
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J\\u202e"


def host(offers: Iterable[str] = (), **changes: Any) -> Host:
    return Host(
        may_read=lambda: None,
        may_act={},
        offers=lambda _: frozenset(offers),  # type: ignore[arg-type]
        user=lambda _: "tester",
        **{"actions": object() if offers else None, **changes},  # type: ignore[arg-type]
    )


def log_line(event: str, text: str, **changes: Any) -> LogLine:
    facts = {"role": "driver", "phase": "", "task_id": "", "attempt_id": "", "shard": None, **changes}
    return LogLine(at_s=AT_S, event=event, process=f"{HOSTILE}:7", text=text, **facts)


def row(job_id: str = "job-1", **changes: Any) -> JobRow:
    return JobRow(
        **{
            "job_id": job_id,
            "destination": "s3://lake/sales",
            "name": "daily sales",
            "phase": "committed",
            "needs": "nothing",
            "needs_why": "",
            "lease": None,
            "mode": "overwrite",
            "committer": "pending uploads",
            "origin": Origin(dag_id="sales", run_id="scheduled__2026-11-18", task_id="write", map_index=2),
            "tasks_committed": 12,
            "tasks_expected": 12,
            "files": 24,
            "rows": 1_204_311,
            "size_bytes": 3_411_222_111,
            "created_s": AT_S - 600,
            "changed_s": AT_S,
            "ended_s": AT_S,
            "commit_s": 2.31,
            **changes,
        }
    )


STUCK = row(
    "job-2",
    phase="committing",
    needs="you",
    needs_why="Decided, but its driver's lease has lapsed and no recovery has come.",
    lease="lapsed",
    ended_s=None,
    commit_s=None,
)
OPEN = row(
    "job-3",
    phase="open",
    needs="wait",
    needs_why="Its driver is at work.",
    lease="held",
    tasks_committed=3,
    tasks_expected=None,
    files=None,
    rows=None,
    size_bytes=None,
    ended_s=None,
    commit_s=None,
    origin=None,
)
EVIL = row(HOSTILE, name=HOSTILE, destination=f"s3://lake/{HOSTILE}", phase="failed", tasks_committed=0)

NAMES = ("set up", "writing", "committed tasks", "audited", "decided", "published", "ended")


def detail(of: JobRow = STUCK, **changes: Any) -> JobDetail:
    states = ["done"] * 3 + ["skipped", "done", "now", "todo"] if of.ended_s is None else ["done"] * 7
    return JobDetail(
        **{
            "row": of,
            "summary": (
                "Decided at 03:12. The driver died. Recovery will finish it at 03:15, or press Recover."
            ),
            "description": "Sales of a day, by shop.",
            "created_by": "worker-3",
            "job_attempt": "a1",
            "journal": "journal-7",
            "steps": tuple(
                Step(
                    name=name,
                    state=state,
                    at_s=AT_S + 9 * i if state == "done" else None,
                    text=f"This is {name}.",
                )
                for i, (name, state) in enumerate(zip(NAMES, states, strict=True))
            ),
            "actions": (
                Possible(action="recover", is_allowed=True, text="Publishes the files that the plan names."),
                Possible(action="abort", is_allowed=False, text="the commit is decided and can only go on."),
            ),
            "audit": AuditResult(is_required=False, verdict=None, decided_s=None),
            "receipt": None,
            "reason": "",
            "counts": None,
            **changes,
        }
    )


AUDITED = detail(
    row("job-4", phase="failed"),
    summary="The audit failed, so nothing was published. The destination is as it was.",
    reason=f"audit failed {HOSTILE}",
    audit=AuditResult(
        is_required=True,
        verdict="failed",
        decided_s=AT_S,
        failing=(
            FailedExpectation(
                expectation="expect_column_values_to_be_between",
                column="price",
                text="31 of 1,204,311 values are below 0",
                samples=("-3.5", "-11", HOSTILE),
            ),
        ),
    ),
    counts={"aborted": 24},
    actions=(),
)
DONE = detail(
    row("job-1"),
    summary="Committed: 24 files are visible in s3://lake/sales since 03:12.",
    actions=(),
    receipt=PublishedJob(
        turn=318,
        mode="overwrite",
        committer="pending uploads",
        files=24,
        rows=1_204_311,
        size_bytes=3_411_222_111,
        removed_files=24,
        published_s=AT_S,
    ),
    counts={"published": 24},
)
DETAILS = {
    found.row.job_id: found
    for found in (detail(), DONE, AUDITED, detail(OPEN), detail(EVIL, summary=HOSTILE))
}

ANSWERS: dict[str, Any] = {
    "/jobs": Page[JobRow](items=(STUCK, OPEN, row(), EVIL), next_after="next+key"),
    "/jobs/counts": JobCounts(needs_you=1, unended=2, first=(STUCK,)),
    "/runs": Page[JobRow](items=(row(),)),
    "/attempts": Page[Attempt](
        items=(
            Attempt(
                task_id="0",
                attempt_id="0.1",
                job_attempt="a1",
                committed_s=AT_S,
                files=2,
                rows=9,
                size_bytes=4096,
                counts=True,
            ),
            Attempt(
                task_id="0",
                attempt_id="0.0",
                job_attempt="a1",
                committed_s=AT_S,
                files=2,
                rows=None,
                size_bytes=4096,
                counts=False,
            ),
            Attempt(
                task_id=HOSTILE,
                attempt_id="1.0",
                job_attempt="a1",
                committed_s=AT_S,
                files=2,
                rows=9,
                size_bytes=99,
                counts=None,
            ),
        )
    ),
    "/files": Page[JobFile](
        items=(
            JobFile(key="day=1/part-0.parquet", state="published", size_bytes=1 << 21, rows=50_000),
            JobFile(
                key=f"day=1/{HOSTILE}", state="lost", size_bytes=None, rows=None, detail=f"gone {HOSTILE}"
            ),
        ),
        next_after="shard-2",
    ),
    "/plan": JobPlan(
        digest="9f2c" * 16,
        turn=318,
        mode="overwrite",
        added_files=24,
        added_rows=1_204_311,
        added_bytes=3_411_222_111,
        removed_files=24,
        removed_rows=None,
        removed_bytes=3_300_000_000,
    ),
    "/log": JobLog(
        lines=(
            log_line("opened", "opened"),
            log_line("task committed", f"task {HOSTILE} committed: 1 files", task_id=HOSTILE, role="worker"),
            log_line("phase", "phase: committed", phase="committed"),
        ),
        files=(LogFile(name=f"{HOSTILE}.driver-1.log", state="cut"),),
        recoveries=(
            Recovery(
                process=f"{HOSTILE}:7",
                began_s=AT_S,
                ended_s=AT_S + 2,
                action="abort",
                why=HOSTILE,
                result="",
                phase="failed",
            ),
            Recovery(process="w:8", began_s=AT_S, ended_s=None, action="abort", why="", result="", phase=""),
        ),
        is_cut=True,
    ),
    "/destinations": Page[DestinationRow](
        items=(
            DestinationRow(destination="s3://lake/sales", first_s=AT_S - 9e6, last_s=AT_S),
            DestinationRow(destination=f"s3://lake/{HOSTILE}", first_s=AT_S - 9e6, last_s=AT_S),
        )
    ),
    "/destinations/detail": DestinationDetail(
        destination="s3://lake/sales",
        turn=318,
        live_files=4_212,
        live_rows=88_123_000,
        live_bytes=211_000_000_000,
        average_file_bytes=5.1e7,
        columns=(ColumnType(name="shop", type="string"), ColumnType(name=HOSTILE, type="double")),
        hint="The files are small on average (48.6 MiB): a compaction would make reads faster.",
        blocked="Turn 318 is decided and has no outcome: recover job-2.",
    ),
    "/destinations/log": Page[Turn](
        items=(
            Turn(
                turn=318,
                job_id="job-2",
                verdict=None,
                decided_s=AT_S,
                added_files=24,
                added_rows=1_204_311,
                added_bytes=3_411_222_111,
                removed_files=24,
                removed_rows=1_190_000,
                removed_bytes=3_300_000_000,
                origin=Origin(dag_id="sales", run_id="scheduled__2026-11-18", task_id="write"),
            ),
            Turn(
                turn=317,
                job_id=HOSTILE,
                created_by=HOSTILE,
                verdict="reverted",
                decided_s=AT_S - 86_400,
                added_files=24,
                added_rows=None,
                added_bytes=3_311_222_111,
                removed_files=0,
                removed_rows=0,
                removed_bytes=0,
                reason=HOSTILE,
            ),
            Turn(
                turn=316,
                job_id="job-0",
                verdict="published",
                decided_s=None,
                added_files=20,
                added_rows=7,
                added_bytes=3_011_222_111,
                removed_files=0,
                removed_rows=0,
                removed_bytes=0,
            ),
        )
    ),
    "/uploads": Page[UploadRow](
        items=(
            UploadRow(
                key="sales/part-7.parquet",
                upload_id="u-1",
                owner="job-2",
                begun_s=AT_S,
                size_bytes=64 << 20,
                action="keep",
                why="its job is undecided",
                remedy="",
            ),
            UploadRow(
                key=HOSTILE,
                upload_id=HOSTILE,
                owner=None,
                begun_s=AT_S,
                size_bytes=None,
                action="abort",
                why=HOSTILE,
                remedy=HOSTILE,
            ),
        ),
        next_after="u",
    ),
    "/uploads/owners": UploadOwners(
        items=tuple(
            UploadOwner(
                owner=owner,
                uploads=815,
                unmeasured=3,
                size_bytes=52 << 30,
                monthly_usd=monthly_usd,
                oldest_s=AT_S,
                newest_s=AT_S + 9,
                actions={"abort": 811, "keep": 4},
            )
            for owner, monthly_usd in ((None, 1.2), ("job-2", None), (HOSTILE, 0.1))
        ),
        next_after="u",
        totals=(
            UploadTotals(action="abort", uploads=811, unmeasured=3, size_bytes=52 << 30, monthly_usd=1.2),
            UploadTotals(action="keep", uploads=4, unmeasured=0, size_bytes=256 << 20, monthly_usd=None),
        ),
    ),
    "/blobs/jobs": Page[BlobJobRow](
        items=(
            BlobJobRow(
                blob_job=HOSTILE,
                blobs=3,
                size_bytes=9 << 20,
                since_s=AT_S,
                destination="s3://lake/sales",
                job_id="job-1",
                ended_s=AT_S,
                until="They go on 20 November.",
            ),
            BlobJobRow(
                blob_job="no_job",
                blobs=1,
                size_bytes=9,
                since_s=AT_S,
                destination=None,
                job_id=None,
                ended_s=None,
                until="They stay while referenced.",
            ),
        )
    ),
    "/blobs/jobs/no_job": Page[BlobRow](
        items=(
            BlobRow(
                blob_key="k" * 64,
                name=HOSTILE,
                use="library",
                is_in_ha_store=True,
                size_bytes=77,
                put_s=AT_S,
                state="referenced",
                goes_s=None,
                owners=("worker-1", HOSTILE),
            ),
            BlobRow(
                blob_key="m" * 64,
                name="",
                use="log",
                is_in_ha_store=False,
                size_bytes=77,
                put_s=AT_S,
                state="unreferenced",
                goes_s=AT_S,
                owners=(),
            ),
        )
    ),
    "/journal": JournalDetail(
        where="postgresql://journal/lockgate",
        journal="journal-7",
        stamp="3:88121",
        epoch=3,
        entries=88_121,
        leases={"held": 4, "lapsed": 1},
        safe_mode=(SafeModeReason(reason="operator", since_s=AT_S, text=HOSTILE),),
        checkpoint=CheckpointRow(stamp="3:80000", created_s=AT_S, size_bytes=1 << 24),
        entries_since_checkpoint=8_121,
    ),
    "/journal/observers": Page[ObserverRow](
        items=(
            ObserverRow(
                where="postgresql://replica-1/lockgate", stamp="3:88100", behind_entries=21, lag_s=0.4
            ),
            ObserverRow(where=HOSTILE, stamp=None, behind_entries=None, lag_s=None, error=HOSTILE),
        )
    ),
    "/journal/checkpoints": Page[CheckpointRow](
        items=(CheckpointRow(stamp="3:80000", created_s=AT_S, size_bytes=1 << 24),)
    ),
}

UNITS = {
    "commit-time": "s",
    "rows": "rows",
    "bytes": "bytes",
    "live-files": "files",
    "live-bytes": "bytes",
}


def series(name: str) -> Series:
    scale = {"bytes": 3e9, "rows": 1.2e6, "s": 4.0}.get(UNITS[name], 9)
    values = [None if i % 9 == 5 else float(int(scale * (1 + (i * 7) % 5 + i / 10))) for i in range(30)]
    return Series(
        name=name,  # type: ignore[arg-type]
        title={
            "commit-time": "Commit time",
            "rows": "Rows published",
            "bytes": "Bytes published",
            "live-files": "Live files",
            "live-bytes": "Live bytes",
        }[name],
        unit=UNITS[name],
        interval_s=86_400,
        at_s=tuple(AT_S - 86_400 * (30 - i) for i in range(30)),
        values=tuple(values),
    )


def pages_over(answers: dict[str, Any] | None = None, by: Host | None = None) -> FastAPI:
    """Return the pages over an API with these answers; an exception is raised."""
    found = ANSWERS if answers is None else answers
    app = FastAPI()
    app.add_middleware(EtagMiddleware)
    app.add_middleware(HeadersMiddleware)
    answer_problems(app)
    api = APIRouter(prefix="/api/v1")

    @api.get("/charts/{name}")
    def chart(name: str) -> Series:
        if isinstance(found.get("/charts"), Exception):
            raise found["/charts"]
        return series(name)

    @api.get("/{path:path}", response_model=None)
    def any_read(request: Request, path: str) -> Model:
        answer = found.get(f"/{path}")
        head, _, last = path.rpartition("/")
        if answer is None and path.startswith("jobs/"):
            answer = (
                found.get(f"/{last}") if head in {f"jobs/{job}" for job in DETAILS} else DETAILS.get(path[5:])
            )
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            raise HTTPException(404, f"{path}: there is no such thing; nothing was read")
        return answer  # type: ignore[no-any-return]

    app.include_router(api)
    app.include_router(page_routes(by or host()))
    return app
