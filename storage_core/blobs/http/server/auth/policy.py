"""Access policies: what the application calls before each request, given by the program that mounts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from starlette.requests import Request


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


AccessPolicy = Callable[["Request", RequestedAccess], Awaitable[None]]
"""Returns if the request is allowed; otherwise raises `UnauthenticatedError` or `AccessDeniedError`. It runs
on the event loop, so blocking work belongs in a thread."""


async def allow_all(request: Request, access: RequestedAccess) -> None:
    """Allow everything, for a loopback address or behind an application that has checked the request."""
