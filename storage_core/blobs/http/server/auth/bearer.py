"""Bearer tokens: what the stand-alone server asks for."""

from __future__ import annotations

from starlette.requests import Request

from lockgate.storage_core.blobs.http.server.auth.policy import (
    ALL_JOBS,
    NO_JOB_YET,
    UnauthenticatedError,
    Wanted,
)
from lockgate.storage_core.blobs.http.server.auth.token_file import TokenFile
from lockgate.storage_core.errors import AccessDeniedError


class BearerTokens:
    """Lets those in that show a token of a file, to the jobs that the file names beside it."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    async def __call__(self, request: Request, wanted: Wanted) -> None:
        """Admit a request.

        Raises:
            UnauthenticatedError: It shows no token, or one that is not known.
            AccessDeniedError: Its token does not open the job.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise UnauthenticatedError(
                "this blob server asks for a bearer token, and the request shows none; nothing was done; "
                "name a file whose first line is one in LOCKGATE_BLOB_TOKEN_FILE"
            )
        grant = self._tokens.grant_of(token.strip())
        if grant is None:
            raise UnauthenticatedError(
                "the bearer token is not known to this blob server; nothing was done; ask its operator for "
                "one, or for the file to be mended"
            )
        if wanted.job_id != NO_JOB_YET and not grant.opens(wanted.job_id):
            of = "all jobs" if wanted.job_id == ALL_JOBS else f"job {wanted.job_id}"
            raise AccessDeniedError(
                f"the bearer token does not open {of}; nothing was done; its line in the server's token file "
                f"names the jobs that it opens: {' '.join(grant.jobs)}"
            )
