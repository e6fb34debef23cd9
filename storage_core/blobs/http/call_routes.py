"""Routes for sets, references, jobs and the sweep, one for each call of the blob server.

A sweep reports its progress line by line, because it may take long.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lockgate.storage_core.blobs.http import messages
from lockgate.storage_core.blobs.http.access import ALL_JOBS
from lockgate.storage_core.blobs.http.messages import LINES, SweepLine, SweepRequest
from lockgate.storage_core.blobs.http.service import Service
from lockgate.storage_core.blobs.keys import UploadSetId, check_blob_key, check_upload_set
from lockgate.storage_core.blobs.registry.blob_rows import UploadSet
from lockgate.storage_core.blobs.registry.queries import references_of
from lockgate.storage_core.errors import AccessDeniedError, LockgateError
from lockgate.storage_core.http.application import JsonResponse
from lockgate.storage_core.http.problems import ErrorBody, body_of

EMPTY: Final = messages.Empty()
LOG: Final = logging.getLogger("lockgate.blobs")
BEAT_S: Final = 1.0
"""Time between two lines."""


def call_routes(service: Service) -> APIRouter:
    """Return the routes."""
    calls = _Calls(service)
    blob = APIRouter(prefix="/jobs/{job_id}/blobs/{blob_key}", dependencies=[Depends(service.admit)])
    blob.add_api_route("/refer", calls.refer, methods=["POST"], name="refer")
    blob.add_api_route("/drop", calls.drop, methods=["POST"], name="drop")
    blob.add_api_route("/recheck", calls.recheck, methods=["POST"], name="recheck")
    job = APIRouter(prefix="/jobs/{job_id}", dependencies=[Depends(service.admit)])
    job.add_api_route("", calls.job, methods=["GET"], name="job")
    job.add_api_route("/blobs", calls.page_of_job, methods=["GET"], name="list")
    job.add_api_route("/sets", calls.begin_set, methods=["POST"], name="begin_set")
    job.add_api_route("/submit", calls.submit, methods=["POST"], name="submit")
    job.add_api_route("/fail", calls.fail, methods=["POST"], name="fail")
    job.add_api_route("/finish", calls.finish, methods=["POST"], name="finish")
    without_job = APIRouter(dependencies=[Depends(service.admit_without_job)])
    without_job.add_api_route("/sets/renew", calls.renew_sets, methods=["POST"], name="renew_sets")
    without_job.add_api_route(
        "/sets/{upload_set}/complete", calls.complete_set, methods=["POST"], name="complete_set"
    )
    without_job.add_api_route("/references", calls.references, methods=["GET"], name="references")
    without_job.add_api_route("/verify", calls.verify, methods=["POST"], name="verify")
    without_job.add_api_route("/now", calls.now, methods=["GET"], name="now")
    without_job.add_api_route("/owners/drop", calls.drop_owner, methods=["POST"], name="drop_owner")
    all_jobs = APIRouter(dependencies=[Depends(service.admit_to_all)])
    all_jobs.add_api_route("/jobs", calls.jobs, methods=["GET"], name="jobs")
    all_jobs.add_api_route("/sweep", calls.sweep, methods=["POST"], name="sweep")
    all_jobs.add_api_route("/blobs", calls.page, methods=["GET"], name="list_all")
    routes = APIRouter()
    for part in (blob, job, without_job, all_jobs):
        routes.include_router(part)
    return routes


class _Calls:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._server = service.server

    async def refer(self, request: Request, job_id: str, blob_key: str) -> Response:
        refer = await self._service.message(request, messages.Refer)
        key = check_blob_key(blob_key)
        await self._service.call(self._server.refer, job_id, key, refer.owner, lapse_s=refer.lapse_s)
        return JsonResponse(EMPTY)

    async def drop(self, request: Request, job_id: str, blob_key: str) -> Response:
        drop = await self._service.message(request, messages.Drop)
        await self._service.call(self._server.drop, job_id, check_blob_key(blob_key), drop.owner)
        return JsonResponse(EMPTY)

    async def recheck(self, job_id: str, blob_key: str) -> Response:
        """Read a blob that arrived damaged at a client again, and heal it."""
        await self._service.transfer(self._server.reader.recheck, job_id, check_blob_key(blob_key))
        return JsonResponse(EMPTY)

    async def job(self, job_id: str) -> Response:
        found = await self._service.call(self._server.jobs, job_id)
        return JsonResponse(messages.Jobs(tuple(found)))

    async def page_of_job(self, job_id: str, after: str = "") -> Response:
        found = await self._service.call(self._server.page, job_id, after=(job_id, after))
        return JsonResponse(messages.Page(tuple(found)))

    async def begin_set(self, request: Request, job_id: str) -> Response:
        begin = await self._service.message(request, messages.BeginSet)
        upload_set, stamp = await self._service.call(self._server.begin_set_of, begin.holder, job_id)
        return JsonResponse(messages.SetBegun(upload_set, stamp), 201)

    async def submit(self, request: Request, job_id: str) -> Response:
        submit = await self._service.message(request, messages.Submit)
        await self._service.call(
            self._server.submit,
            job_id,
            submit.blob_keys,
            destination=submit.destination,
            commit_job=submit.commit_job,
        )
        return JsonResponse(EMPTY)

    async def fail(self, job_id: str) -> Response:
        await self._service.call(self._server.fail, job_id)
        return JsonResponse(EMPTY)

    async def finish(self, job_id: str) -> Response:
        await self._service.transfer(self._server.finish, job_id)
        return JsonResponse(EMPTY)

    async def jobs(self, after: str = "") -> Response:
        found = await self._service.call(self._server.jobs, after=after)
        return JsonResponse(messages.Jobs(tuple(found)))

    async def page(self, after_job: str = "", after: str = "") -> Response:
        found = await self._service.call(self._server.page, after=(after_job, after))
        return JsonResponse(messages.Page(tuple(found)))

    async def references(
        self,
        request: Request,
        *,
        job_id: str | None = None,
        blob_key: str | None = None,
        owner: str | None = None,
    ) -> Response:
        await self._service.admit(request, job_id or ALL_JOBS)
        found = await self._service.call(
            self._server.references, job_id=job_id, blob_key=blob_key, owner=owner
        )
        return JsonResponse(messages.References(tuple(found)))

    async def verify(self, request: Request) -> Response:
        verify = await self._service.message(request, messages.Verify)
        await self._service.admit(request, verify.job_id or ALL_JOBS)
        verified = await self._service.transfer(
            partial(
                self._server.verify, verify.job_id, after=verify.after, deep=verify.deep, heal=verify.heal
            )
        )
        return JsonResponse(verified)

    async def complete_set(self, request: Request, upload_set: str) -> Response:
        checked = check_upload_set(upload_set)
        found = await self._service.call(_set_of, self._service, checked)
        if found is not None:
            await self._service.admit(request, found.job_id or ALL_JOBS)  # the server's set has no job
        complete = await self._service.message(request, messages.CompleteSet)
        count = await self._service.call(self._server.complete_set, checked, request_id=complete.request_id)
        return JsonResponse(messages.Count(count))

    async def renew_sets(self, request: Request) -> Response:
        """Renew sets without a check of their jobs: only their holder knows its name and the stamps."""
        renew = await self._service.message(request, messages.RenewSets)
        lost = await self._service.call(self._server.renew_sets, renew.holder, renew.held)
        return JsonResponse(messages.SetsRenewed(lost))

    async def now(self, request: Request, owner: str = "") -> Response:
        jobs, _ = await self._opened_jobs(request, owner)
        return JsonResponse(messages.ServerTime(await self._service.call(_now, self._service, owner, jobs)))

    async def drop_owner(self, request: Request) -> Response:
        """Drop an owner's references in the jobs that the client may change; others may use the same name."""
        drop = await self._service.message(request, messages.DropOwner)
        jobs, refusal = await self._opened_jobs(request, drop.owner)
        if refusal is not None and not jobs:
            raise refusal
        count = await self._service.call(
            self._server.drop_owner,
            drop.owner,
            taken_by_s=math.inf if drop.taken_by_s is None else drop.taken_by_s,
            jobs=jobs,
        )
        return JsonResponse(messages.Count(count))

    async def sweep(self, request: Request) -> Response:
        return _SweepResponse(self._service, await self._service.message(request, SweepRequest))

    async def _opened_jobs(
        self, request: Request, owner: str
    ) -> tuple[frozenset[str], AccessDeniedError | None]:
        """Return the jobs of an owner's references that the client may use, and why it may not use others."""
        jobs, refusal = set(), None
        for job_id in await self._service.call(_jobs_of, self._service, owner):
            try:
                await self._service.admit(request, job_id)
                jobs.add(job_id)
            except AccessDeniedError as error:
                refusal = error
        return frozenset(jobs), refusal


def _set_of(service: Service, upload_set: UploadSetId) -> UploadSet | None:
    with service.server.stores.journal.reading() as reading:
        return reading.get(UploadSet, upload_set)


def _now(service: Service, owner: str, jobs: frozenset[str]) -> float:
    """Return now, or the time of an owner's latest reference in these jobs if the clock was set back."""
    with service.server.stores.journal.reading() as reading:
        found = references_of(reading, owner=owner) if jobs else ()
        taken_s = (reference.taken_s for reference in found if reference.job_id in jobs)
        return max([reading.now_s(), *taken_s])


def _jobs_of(service: Service, owner: str) -> set[str]:
    """Return the jobs of the blobs that an owner refers to."""
    with service.server.stores.journal.reading() as reading:
        return {reference.job_id for reference in references_of(reading, owner=owner)}


class _SweepResponse(Response):
    """Sweeps, and sends the progress. The sweep continues if the client disconnects."""

    def __init__(self, service: Service, request: SweepRequest) -> None:
        super().__init__(media_type=LINES)
        del self.headers["content-length"]
        self._service = service
        self._request = request
        self._latest = SweepLine()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of the base
        """Sweep, and send lines until it ends."""
        sweeping = asyncio.ensure_future(self._service.transfer(self._sweep))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while not (await asyncio.wait({sweeping}, timeout=BEAT_S))[0]:
            await send(_body(self._latest, more=True))
        await send(_body(await sweeping, more=False))

    def _sweep(self) -> SweepLine:
        try:
            report = self._service.server.sweep(
                dry_run=self._request.dry_run,
                orphans=self._request.orphans,
                progress=self._note_progress,
            )
        except LockgateError as error:
            return SweepLine(error=body_of(error))
        except Exception:
            LOG.exception("the sweep failed part-way; what it deleted stays deleted")
            message = "the sweep failed part-way; what it deleted stays deleted; see the blob server's log"
            return SweepLine(error=ErrorBody("OutcomeUnknownError", message))
        return SweepLine(report=report)

    def _note_progress(self, step: str, done: int, total: int) -> None:
        self._latest = SweepLine(step=step, done=done, total=total)


def _body(line: SweepLine, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": msgspec.json.encode(line) + b"\n", "more_body": more}
