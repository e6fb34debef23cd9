"""Bearer tokens: the access policy of the stand-alone server."""

from __future__ import annotations

from starlette.requests import Request

from lockgate.storage_core.blobs.http.server.auth.policy import (
    ALL_JOBS,
    NO_JOB_YET,
    RequestedAccess,
    UnauthenticatedError,
)
from lockgate.storage_core.blobs.http.server.auth.token_file import TokenFile
from lockgate.storage_core.errors import AccessDeniedError


class BearerTokens:
    """Allows requests with a token of a file, for the jobs that the file lists with it."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    async def __call__(self, request: Request, access: RequestedAccess) -> None:
        """Allow a request.

        Raises:
            UnauthenticatedError: The request has no token, or an unknown one.
            AccessDeniedError: Its token does not open the job.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise UnauthenticatedError(
                "this blob server requires a bearer token, and the request has none; nothing was done; "
                "set LOCKGATE_BLOB_TOKEN_FILE to a file whose first line is a token"
            )
        grant = self._tokens.grant_of(token.strip())
        if grant is None:
            raise UnauthenticatedError(
                "the bearer token is not known to this blob server; nothing was done; ask its operator for "
                "one, or to correct the token file"
            )
        if access.job_id != NO_JOB_YET and not grant.opens(access.job_id):
            jobs = "all jobs" if access.job_id == ALL_JOBS else f"job {access.job_id}"
            raise AccessDeniedError(
                f"the bearer token does not open {jobs}; nothing was done; its line in the server's token "
                f"file lists the jobs that it opens: {' '.join(grant.jobs)}"
            )
