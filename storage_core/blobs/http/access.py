"""Access policies, which the application calls before each request, and the one of bearer tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
from starlette.requests import Request

from lockgate.storage_core.errors import AccessDeniedError
from lockgate.storage_core.http.tokens import TokenFile

ALL_JOBS: Final = "*"
"""Job of a request that concerns all jobs."""

NO_JOB_YET: Final = ""
"""Job of a request whose jobs only its body or the journal names: a client with access to any job may begin
it, and the policy is called again for each job."""


class RequestedAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The access that a request needs.

    Attributes:
        job_id: Job whose blobs it concerns, `ALL_JOBS`, or `NO_JOB_YET`.
        changes: Whether it changes anything.
    """

    job_id: str
    changes: bool


AccessPolicy = Callable[[Request, RequestedAccess], Awaitable[None]]
"""Returns if the request is allowed; otherwise raises `UnauthenticatedError` or `AccessDeniedError`. It runs
on the event loop, so blocking work belongs in a thread."""


async def allow_all(request: Request, access: RequestedAccess) -> None:
    """Allow everything, for a loopback address or behind an application that has checked the request."""


class BearerTokens:
    """Allows requests with a token of a file, for the jobs that the file lists with it.

    Raises:
        InvalidInputError: As for `TokenFile`.
    """

    def __init__(self, path: Path) -> None:
        self._tokens = TokenFile(path)

    async def __call__(self, request: Request, access: RequestedAccess) -> None:
        """Return if a request is allowed; raise AccessDeniedError, or UnauthenticatedError, if not."""
        grant = self._tokens.grant_of(request.headers.get("authorization", ""))
        if access.job_id != NO_JOB_YET and not grant.opens(access.job_id):
            jobs = "all jobs" if access.job_id == ALL_JOBS else f"job {access.job_id}"
            raise AccessDeniedError(
                f"the bearer token does not open {jobs}; nothing was done; its line in the server's token "
                f"file lists the jobs that it opens: {' '.join(grant.patterns)}"
            )
