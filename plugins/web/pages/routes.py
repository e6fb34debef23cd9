"""The pages' routes. Each calls functions of the JSON API, and renders one template."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from lockgate.plugins.web.access import Host, HostOfRequest
from lockgate.plugins.web.answers import After
from lockgate.plugins.web.api.blobs import blob_jobs, blobs_of_job
from lockgate.plugins.web.api.charts import ChartName, Series, chart
from lockgate.plugins.web.api.destinations import destination_detail, destination_rows
from lockgate.plugins.web.api.job import DestinationOfJob, job_detail
from lockgate.plugins.web.api.job_files import job_attempts, job_files, job_plan
from lockgate.plugins.web.api.job_log import job_log
from lockgate.plugins.web.api.jobs import Filters, JobFilter, MapIndex, job_counts, job_page, run_page
from lockgate.plugins.web.api.journal import checkpoints, journal_detail, observers
from lockgate.plugins.web.api.turns import KnownDestination, destination_log
from lockgate.plugins.web.api.uploads import Owner, open_uploads, upload_owners
from lockgate.plugins.web.pages.parts import Parts
from lockgate.plugins.web.pages.render import STATIC, Pages, page_path
from lockgate.plugins.web.problems import logged_problem
from lockgate.plugins.web.request_reads import Reads, ReadsOfRequest

_LIST_REFRESH_S: Final = 5
_JOB_REFRESH_S: Final = 2
_CHART_DAYS: Final = 30
_SORTS: Final = (("", "newest first"), ("oldest", "oldest first"), ("name", "by name"))
_HEADINGS: Final = {
    401: "Log in to see this page",
    403: "You may not see this page",
    404: "There is no such thing here",
    503: "Something does not answer",
}


def _parts(request: Request) -> Parts:
    return Parts(request)


PartsOfRequest = Annotated[Parts, Depends(_parts)]


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
                except Exception as error:  # noqa: BLE001 - the page has its text, or says that the log has it
                    return _error_page(pages, request, error)

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
    async def jobs(  # noqa: PLR0917 - the last ones are query parameters
        request: Request,
        parts: PartsOfRequest,
        reads: ReadsOfRequest,
        host: HostOfRequest,
        filters: Filters,
        after: After = None,
    ) -> Response:
        is_filtered = filters != JobFilter()
        page, counts, charts = await gather(
            parts.page(partial(job_page, reads, filters, after)),
            parts.part(partial(job_counts, reads, host)),
            parts.all(*([] if is_filtered or after else _charts(reads, "commit-time", "rows", "bytes"))),
        )
        values = {"page": page, "counts": counts, "charts": charts, "filtered": is_filtered, "sorts": _SORTS}
        return pages.response(request, "jobs", _common(request, parts, _LIST_REFRESH_S) | values)

    @router.get("/job")
    async def job(  # noqa: PLR0917 - the last ones are query parameters
        request: Request,
        parts: PartsOfRequest,
        reads: ReadsOfRequest,
        host: HostOfRequest,
        job: str,
        destination: DestinationOfJob = None,
        attempts_after: After = None,
        files_after: After = None,
    ) -> Response:
        detail = await parts.whole(partial(job_detail, reads, host, job, destination))
        place = detail.row.destination
        attempts, files, plan, log = await gather(
            parts.page(partial(job_attempts, reads, job, place, attempts_after)),
            parts.page(partial(job_files, reads, job, place, files_after)),
            parts.part(partial(job_plan, reads, job, place), may_be_absent=True),
            parts.part(partial(job_log, reads, job, place), may_be_absent=True),
        )
        values = {"job": detail, "attempts": attempts, "files": files, "plan": plan, "log": log}
        refresh_s = _JOB_REFRESH_S if detail.row.ended_s is None else _LIST_REFRESH_S
        return pages.response(request, "job", _common(request, parts, refresh_s) | values)

    @router.get("/run")
    async def run(  # noqa: PLR0917 - the last ones are query parameters
        request: Request,
        parts: PartsOfRequest,
        reads: ReadsOfRequest,
        dag_id: str,
        run_id: str,
        task_id: str | None = None,
        map_index: MapIndex = None,
        after: After = None,
    ) -> Response:
        page = await parts.page(partial(run_page, reads, dag_id, run_id, task_id, map_index, after))
        return pages.response(request, "run", _common(request, parts, _LIST_REFRESH_S) | {"page": page})


def _destination_pages(router: APIRouter, pages: Pages) -> None:
    @router.get("/destinations")
    async def destinations(
        request: Request, parts: PartsOfRequest, reads: ReadsOfRequest, after: After = None
    ) -> Response:
        page = await parts.page(partial(destination_rows, reads, after))
        return pages.response(
            request, "destinations", _common(request, parts, _LIST_REFRESH_S) | {"page": page}
        )

    @router.get("/destination")
    async def destination(  # noqa: PLR0917 - the last ones are query parameters
        request: Request,
        parts: PartsOfRequest,
        reads: ReadsOfRequest,
        host: HostOfRequest,
        destination: KnownDestination,
        after: After = None,
    ) -> Response:
        place = await parts.whole(partial(destination_detail, reads, destination))
        names: tuple[ChartName, ...] = ("live-files", "live-bytes", "rows", "bytes", "commit-time")
        turns, charts = await gather(
            parts.page(partial(destination_log, reads, host, destination, after)),
            parts.all(*_charts(reads, *names, destination=destination)),
        )
        values = {"place": place, "turns": turns, "charts": charts, "stopped": host.stopped("revert")}
        return pages.response(request, "destination", _common(request, parts, _LIST_REFRESH_S) | values)


def _storage_pages(router: APIRouter, pages: Pages) -> None:
    @router.get("/uploads")
    async def uploads(  # noqa: PLR0917 - the last ones are query parameters
        request: Request,
        parts: PartsOfRequest,
        reads: ReadsOfRequest,
        destination: str = "",
        owner: Owner = None,
        after: After = None,
    ) -> Response:
        known = (await parts.page(partial(destination_rows, reads))).items
        common = _common(request, parts, 0)  # a listing of a store: it is read when a person asks
        common |= {"page": None, "owners": None, "known": known}
        if not destination:
            return pages.response(request, "uploads", common)

        async def listed() -> Mapping[str, Any]:
            if owner:
                return {"page": await parts.page(partial(open_uploads, reads, destination, owner, after))}
            return {"owners": await parts.part(partial(upload_owners, reads, destination, after))}

        return pages.response_in_two(request, "uploads", common, listed)

    @router.get("/blobs")
    async def blobs(
        request: Request, parts: PartsOfRequest, reads: ReadsOfRequest, job: str = "", after: After = None
    ) -> Response:
        values = {
            "blobs": await parts.page(partial(blobs_of_job, reads, job, after)) if job else None,
            "page": None if job else await parts.page(partial(blob_jobs, reads, after)),
        }
        return pages.response(request, "blobs", _common(request, parts, _LIST_REFRESH_S) | values)

    @router.get("/journal")
    async def journal(
        request: Request, parts: PartsOfRequest, reads: ReadsOfRequest, after: After = None
    ) -> Response:
        found, of_journal, taken = await gather(
            parts.part(partial(journal_detail, reads)),
            parts.page(partial(observers, reads)),
            parts.page(partial(checkpoints, reads, after)),
        )
        values = {"journal": found, "observers": of_journal, "checkpoints": taken}
        return pages.response(request, "journal", _common(request, parts, _LIST_REFRESH_S) | values)


def _charts(reads: Reads, *names: ChartName, destination: str | None = None) -> list[Callable[[], Series]]:
    return [partial(chart, reads, name, _CHART_DAYS, destination) for name in names]


def _common(request: Request, parts: Parts, refresh_s: int) -> dict[str, Any]:
    params = dict(request.query_params)
    path = request.scope.get("root_path", "") + page_path(request)

    def again(changed: dict[str, str]) -> str:
        """Return the address of this page with other parameters; without any, of its first page."""
        kept = {name: value for name, value in params.items() if not name.endswith("after")} | changed
        return f"{path}?{urlencode(kept)}" if kept else path

    docs = (request.app.state.reads.settings.docs_url or "").rstrip("/")
    common = {"unknown": parts.unknown, "refresh_s": refresh_s, "again": again, "request_params": params}
    return common | {"docs": docs}


def _error_page(pages: Pages, request: Request, error: Exception) -> Response:
    problem = logged_problem(request, error)
    heading = _HEADINGS.get(problem.status, "This page cannot be shown")
    values = {"problem": problem, "heading": heading, "refresh_s": 0}
    page = pages.response(request, "error", values, problem.status)
    if isinstance(error, HTTPException):
        page.headers.update(error.headers or {})
    return page
