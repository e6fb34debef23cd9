"""Routes that change what keeps blobs, and tell of it: each a call of the blob server."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from lockgate.storage_core.blobs.http import messages
from lockgate.storage_core.blobs.http.server.auth.policy import ALL_JOBS
from lockgate.storage_core.blobs.http.server.responses import Json
from lockgate.storage_core.blobs.http.server.service import Service
from lockgate.storage_core.blobs.keys import UploadSetId, check_blob_key, check_upload_set
from lockgate.storage_core.blobs.registry.queries import owned_by
from lockgate.storage_core.blobs.registry.rows import UploadSet

NOTHING: Final = messages.Nothing()


def calls(service: Service) -> APIRouter:
    """Return the routes."""
    of = _Calls(service)
    blob = APIRouter(prefix="/jobs/{job_id}/blobs/{blob_key}", dependencies=[Depends(service.admit_to_job)])
    blob.add_api_route("/refer", of.refer, methods=["POST"], name="refer")
    blob.add_api_route("/drop", of.drop, methods=["POST"], name="drop")
    blob.add_api_route("/recheck", of.recheck, methods=["POST"], name="recheck")
    job = APIRouter(prefix="/jobs/{job_id}", dependencies=[Depends(service.admit_to_job)])
    job.add_api_route("", of.job, methods=["GET"], name="job")
    job.add_api_route("/blobs", of.page_of_job, methods=["GET"], name="list")
    job.add_api_route("/sets", of.begin_set, methods=["POST"], name="begin_set")
    job.add_api_route("/submit", of.submit, methods=["POST"], name="submit")
    job.add_api_route("/fail", of.fail, methods=["POST"], name="fail")
    job.add_api_route("/finish", of.finish, methods=["POST"], name="finish")
    known = APIRouter(dependencies=[Depends(service.admit_known)])
    known.add_api_route("/sets/renew", of.renew_sets, methods=["POST"], name="renew_sets")
    known.add_api_route("/sets/{upload_set}/complete", of.complete_set, methods=["POST"], name="complete_set")
    known.add_api_route("/references", of.references, methods=["GET"], name="references")
    known.add_api_route("/verify", of.verify, methods=["POST"], name="verify")
    known.add_api_route("/now", of.now, methods=["GET"], name="now")
    known.add_api_route("/owners/drop", of.drop_owner, methods=["POST"], name="drop_owner")
    every = APIRouter(dependencies=[Depends(service.admit_to_all)])
    every.add_api_route("/jobs", of.jobs, methods=["GET"], name="jobs")
    every.add_api_route("/blobs", of.page, methods=["GET"], name="list_all")
    routes = APIRouter()
    for part in (blob, job, known, every):
        routes.include_router(part)
    return routes


class _Calls:
    """Calls of the server behind a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._server = service.server

    async def refer(self, request: Request, job_id: str, blob_key: str) -> Response:
        told = await self._service.told(request, messages.Refer)
        key = check_blob_key(blob_key)
        await self._service.call(self._server.refer, job_id, key, told.owner, lapse_s=told.lapse_s)
        return Json(NOTHING)

    async def drop(self, request: Request, job_id: str, blob_key: str) -> Response:
        told = await self._service.told(request, messages.Drop)
        await self._service.call(self._server.drop, job_id, check_blob_key(blob_key), told.owner)
        return Json(NOTHING)

    async def recheck(self, job_id: str, blob_key: str) -> Response:
        """Read a blob again, and heal it, for its receiver has got other bytes."""
        await self._service.move(self._server.reader.recheck, job_id, check_blob_key(blob_key))
        return Json(NOTHING)

    async def job(self, job_id: str) -> Response:
        found = await self._service.call(self._server.jobs, job_id)
        return Json(messages.Jobs(tuple(found)))

    async def page_of_job(self, job_id: str, after: str = "") -> Response:
        found = await self._service.call(self._server.page, job_id, after=(job_id, after))
        return Json(messages.Page(tuple(found)))

    async def begin_set(self, request: Request, job_id: str) -> Response:
        told = await self._service.told(request, messages.BeginSet)
        upload_set, stamp = await self._service.call(self._server.begin_set_of, told.holder, job_id)
        return Json(messages.SetBegun(upload_set, stamp), 201)

    async def submit(self, request: Request, job_id: str) -> Response:
        told = await self._service.told(request, messages.Submit)
        await self._service.call(
            self._server.submit,
            job_id,
            told.blob_keys,
            destination=told.destination,
            commit_job=told.commit_job,
        )
        return Json(NOTHING)

    async def fail(self, job_id: str) -> Response:
        await self._service.call(self._server.fail, job_id)
        return Json(NOTHING)

    async def finish(self, job_id: str) -> Response:
        await self._service.move(self._server.finish, job_id)
        return Json(NOTHING)

    async def jobs(self, after: str = "") -> Response:
        found = await self._service.call(self._server.jobs, after=after)
        return Json(messages.Jobs(tuple(found)))

    async def page(self, after_job: str = "", after: str = "") -> Response:
        found = await self._service.call(self._server.page, after=(after_job, after))
        return Json(messages.Page(tuple(found)))

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
        return Json(messages.References(tuple(found)))

    async def verify(self, request: Request) -> Response:
        told = await self._service.told(request, messages.Verify)
        await self._service.admit(request, told.job_id or ALL_JOBS)
        verified = await self._service.move(
            partial(self._server.verify, told.job_id, after=told.after, deep=told.deep, heal=told.heal)
        )
        return Json(verified)

    async def complete_set(self, request: Request, upload_set: str) -> Response:
        checked = check_upload_set(upload_set)
        found = await self._service.call(_set_of, self._service, checked)
        if found is not None:
            await self._service.admit(request, found.job_id or ALL_JOBS)  # the server's own is for any job
        told = await self._service.told(request, messages.CompleteSet)
        count = await self._service.call(self._server.complete_set, checked, request_id=told.request_id)
        return Json(messages.Counted(count))

    async def renew_sets(self, request: Request) -> Response:
        """Renew sets for whoever knows their holder's name and stamps: nobody else was told of them."""
        told = await self._service.told(request, messages.RenewSets)
        lost = await self._service.call(self._server.renew_sets, told.holder, told.held)
        return Json(messages.SetsRenewed(lost))

    async def now(self, owner: str = "") -> Response:
        return Json(messages.ServerTime(await self._service.call(_now, self._service, owner)))

    async def drop_owner(self, request: Request) -> Response:
        told = await self._service.told(request, messages.DropOwner)
        for job_id in await self._service.call(_jobs_of, self._service, told.owner):
            await self._service.admit(request, job_id)
        count = await self._service.call(
            self._server.drop_owner,
            told.owner,
            taken_by_s=math.inf if told.taken_by_s is None else told.taken_by_s,
        )
        return Json(messages.Counted(count))


def _set_of(service: Service, upload_set: UploadSetId) -> UploadSet | None:
    with service.server.holdings.journal.reading() as reading:
        return reading.get(UploadSet, upload_set)


def _now(service: Service, owner: str) -> float:
    """Return the time, or when an owner took its latest reference: the clock may have been put back since."""
    with service.server.holdings.journal.reading() as reading:
        return max([reading.now_s(), *(one.taken_s for one in owned_by(reading, owner))])


def _jobs_of(service: Service, owner: str) -> set[str]:
    """Return the jobs to whose blobs an owner has references."""
    with service.server.holdings.journal.reading() as reading:
        return {reference.job_id for reference in owned_by(reading, owner)}
