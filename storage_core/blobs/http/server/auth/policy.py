"""Who may do what with the blobs of which job: asked of whoever mounts the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from lockgate.storage_core.errors import AccessDeniedError

if TYPE_CHECKING:
    from starlette.requests import Request


ALL_JOBS: Final = "*"
"""What reaches over jobs is wanted of this one."""

NO_JOB_YET: Final = ""
"""Which jobs are meant the body tells, or the journal: whoever may do anything at all is let on, and each job
is asked about then."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is about to do.

    Attributes:
        job_id: With blobs of this job, of `ALL_JOBS`, or of `NO_JOB_YET`.
        changes: Whether it changes anything.
    """

    job_id: str
    changes: bool


Authorise = Callable[["Request", Wanted], Awaitable[None]]
"""Returns if the request may; raises `UnauthenticatedError` or `AccessDeniedError`. It runs on the event
loop: what may block belongs into a thread."""


class UnauthenticatedError(AccessDeniedError):
    """Nobody knows who asks."""


async def anyone(request: Request, wanted: Wanted) -> None:
    """Let everybody do everything: on a loopback address, or behind an application that has asked before."""
