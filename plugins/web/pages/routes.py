"""The pages' routes. Each reads the JSON API of the same application, and renders one template."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.api.runs import MapIndex
from lockgate.plugins.web.models.charts import ChartName, Series
from lockgate.plugins.web.models.destinations import DestinationDetail, DestinationRow, Turn
from lockgate.plugins.web.models.event_log import JobLog
from lockgate.plugins.web.models.jobs import Attempt, JobCounts, JobDetail, JobFile, JobPlan, JobRow
from lockgate.plugins.web.models.journal import CheckpointRow, JournalDetail, ObserverRow
from lockgate.plugins.web.models.storage import BlobJobRow, BlobRow, UploadOwners, UploadRow
from lockgate.plugins.web.pages.api_reads import ApiReads, ProblemError
from lockgate.plugins.web.pages.render import STATIC, Pages, page_path
from lockgate.plugins.web.problems import Problem, problem_of
from lockgate.storage_core.errors import LockgateError

_LIST_REFRESH_S: Final = 5
_JOB_REFRESH_S: Final = 2
_CHART_DAYS: Final = 30
_FILTERS: Final = ("needs", "phase", "destination", "search", "sort")
_SORTS: Final = (("", "newest first"), ("oldest", "oldest first"), ("name", "by name"))
_HEADINGS: Final = {
    401: "Log in to see this page",
    403: "You may not see this page",
    404: "There is no such thing here",
    503: "Something does not answer",
}


def page_routes(host: Host) -> APIRouter:
    """Return the routes of all pages and of their static files.

    Args:
        host: The program that serves them.
    """
    pages = Pages(host)

    class PageRoute(APIRoute):
        """Answers errors with a page."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def with_error_page(request: Request) -> Response:
                try:
                    return await handle(request)
                except ProblemError as error:
                    return _error_page(pages, request, error.problem)
                except HTTPException as error:
                    found = _error_page(pages, request, problem_of(error))
                    found.headers.update(error.headers or {})
                    return found
                except (LockgateError, RequestValidationError) as error:
                    return _error_page(pages, request, problem_of(error))

            return with_error_page

    router = APIRouter(route_class=PageRoute, include_in_schema=False, default_response_class=HTMLResponse)
    _job_pages(router, pages)
    _destination_pages(router, pages)
    _storage_pages(router, pages)

    @router.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in STATIC:
            raise HTTPException(404, f"{name}: the pages have no such file")
        body, kind = STATIC[name]
        # The address has the version of the files, so that a browser may keep them.
        return Response(
            body, media_type=kind, headers={"cache-control": "private, max-age=31536000, immutable"}
        )

    return router


def _job_pages(router: APIRouter, pages: Pages) -> None:
    @router.get("/")
    def index(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/jobs", 303)

    @router.get("/jobs")
    async def jobs(request: Request) -> Response:
        reads, here = ApiReads(request), request.query_params
        filters = {name: here.get(name) for name in _FILTERS}
        is_plain = not any(filters.values()) and "after" not in here
        page, counts, charts = await gather(
            reads.page(JobRow, "/jobs", after=here.get("after"), **filters),
            reads.part(JobCounts, "/jobs/counts"),
            _charts(reads, "commit-time", "rows", "bytes") if is_plain else _none(),
        )
        return pages.response(
            request,
            "jobs",
            page=page,
            counts=counts,
            charts=charts,
            filtered=any(filters.values()),
            sorts=_SORTS,
            **_common(request, reads, _LIST_REFRESH_S),
        )

    @router.get("/job")
    async def job(request: Request, job: str, destination: str | None = None) -> Response:
        reads, here = ApiReads(request), request.query_params
        path = f"/jobs/{job}"
        detail = await reads.one(JobDetail, path, destination=destination)
        place = detail.row.destination
        attempts, files, plan, log = await gather(
            reads.page(Attempt, f"{path}/attempts", destination=place, after=here.get("attempts_after")),
            reads.page(JobFile, f"{path}/files", destination=place, after=here.get("files_after")),
            reads.part(JobPlan, f"{path}/plan", may_be_absent=True, destination=place),
            reads.part(JobLog, f"{path}/log", may_be_absent=True, destination=place),
        )
        common = _common(request, reads, _JOB_REFRESH_S if detail.row.ended_s is None else _LIST_REFRESH_S)
        found = [*reads.unknown, *(log.unknown if log is not None else ())]
        common["unknown"] = [*detail.unknown, *(text for text in found if text not in detail.unknown)]
        return pages.response(
            request, "job", job=detail, attempts=attempts, files=files, plan=plan, log=log, **common
        )

    @router.get("/run")
    async def run(
        request: Request, dag_id: str, run_id: str, task_id: str | None = None, map_index: MapIndex = None
    ) -> Response:
        reads = ApiReads(request)
        page = await reads.page(
            JobRow,
            "/runs",
            dag_id=dag_id,
            run_id=run_id,
            task_id=task_id,
            map_index=map_index,
            after=request.query_params.get("after"),
        )
        return pages.response(request, "run", page=page, **_common(request, reads, _LIST_REFRESH_S))


def _destination_pages(router: APIRouter, pages: Pages) -> None:
    @router.get("/destinations")
    async def destinations(request: Request, after: str | None = None) -> Response:
        reads = ApiReads(request)
        page = await reads.page(DestinationRow, "/destinations", after=after)
        return pages.response(request, "destinations", page=page, **_common(request, reads, _LIST_REFRESH_S))

    @router.get("/destination")
    async def destination(request: Request, destination: str, after: str | None = None) -> Response:
        reads = ApiReads(request)
        place = await reads.one(DestinationDetail, "/destinations/detail", destination=destination)
        turns, charts = await gather(
            reads.page(Turn, "/destinations/log", destination=destination, after=after),
            _charts(
                reads, "live-files", "live-bytes", "rows", "bytes", "commit-time", destination=destination
            ),
        )
        common = _common(request, reads, _LIST_REFRESH_S)
        common["unknown"] = [*place.unknown, *(text for text in reads.unknown if text not in place.unknown)]
        return pages.response(request, "destination", place=place, turns=turns, charts=charts, **common)


def _storage_pages(router: APIRouter, pages: Pages) -> None:
    @router.get("/uploads")
    async def uploads(
        request: Request, destination: str = "", owner: str = "", after: str | None = None
    ) -> Response:
        reads = ApiReads(request)
        known = (await reads.page(DestinationRow, "/destinations")).items
        common = _common(request, reads, 0)  # a listing of a store: it is read when a person asks
        common |= {"page": None, "owners": None, "known": known}
        if not destination:
            return pages.response(request, "uploads", **common)

        async def listed() -> dict[str, Any]:
            if owner:
                page = await reads.page(
                    UploadRow, "/uploads", destination=destination, owner=owner, after=after
                )
                return {"page": page, "unknown": reads.unknown}
            owners = await reads.part(UploadOwners, "/uploads/owners", destination=destination, after=after)
            more = () if owners is None else owners.unknown
            return {"owners": owners, "unknown": [*reads.unknown, *more]}

        return pages.response_in_two(request, "uploads", listed, **common)

    @router.get("/blobs")
    async def blobs(request: Request, job: str = "", after: str | None = None) -> Response:
        reads = ApiReads(request)
        page = blobs = None
        if job:
            blobs = await reads.page(BlobRow, f"/blobs/jobs/{job}", after=after)
        else:
            page = await reads.page(BlobJobRow, "/blobs/jobs", after=after)
        return pages.response(
            request, "blobs", page=page, blobs=blobs, **_common(request, reads, _LIST_REFRESH_S)
        )

    @router.get("/journal")
    async def journal(request: Request, after: str | None = None) -> Response:
        reads = ApiReads(request)
        found, observers, checkpoints = await gather(
            reads.part(JournalDetail, "/journal"),
            reads.page(ObserverRow, "/journal/observers"),
            reads.page(CheckpointRow, "/journal/checkpoints", after=after),
        )
        common = _common(request, reads, _LIST_REFRESH_S)
        if found is not None:
            common["unknown"] = [
                *found.unknown,
                *(text for text in reads.unknown if text not in found.unknown),
            ]
        return pages.response(
            request,
            "journal",
            journal=found,
            observers=observers,
            checkpoints=checkpoints,
            **common,
        )


def _common(request: Request, reads: ApiReads, refresh_s: int) -> dict[str, Any]:
    params = dict(request.query_params)
    path = request.scope.get("root_path", "") + page_path(request)

    def again(changed: dict[str, str]) -> str:
        """Return the address of this page with other parameters; without any, of its first page."""
        kept = {name: value for name, value in params.items() if not name.endswith("after")} | changed
        return f"{path}?{urlencode(kept)}" if kept else path

    return {"unknown": reads.unknown, "refresh_s": refresh_s, "again": again, "request_params": params}


async def _charts(reads: ApiReads, *names: ChartName, destination: str | None = None) -> tuple[Series, ...]:
    found = await gather(
        *(reads.part(Series, f"/charts/{name}", days=_CHART_DAYS, destination=destination) for name in names)
    )
    return tuple(series for series in found if series is not None)


async def _none() -> tuple[Series, ...]:
    return ()


def _error_page(pages: Pages, request: Request, problem: Problem) -> Response:
    heading = _HEADINGS.get(problem.status, "This page cannot be shown")
    return pages.response(
        request,
        "error",
        problem.status,
        problem=problem,
        heading=heading,
        refresh_s=0,
    )
