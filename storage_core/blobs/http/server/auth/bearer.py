"""Bearer tokens: the access policy of the stand-alone server."""

from __future__ import annotations

from starlette.requests import Request

from lockgate.storage_core.blobs.http.server.auth.policy import ALL_JOBS, NO_JOB_YET, RequestedAccess
from lockgate.storage_core.errors import AccessDeniedError
from lockgate.storage_core.http.server.request_token import grant_of
from lockgate.storage_core.http.server.token_file import TokenFile


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
        grant = grant_of(request, self._tokens, server="blob server", setting="LOCKGATE_BLOB_TOKEN_FILE")
        if access.job_id != NO_JOB_YET and not grant.opens(access.job_id):
            jobs = "all jobs" if access.job_id == ALL_JOBS else f"job {access.job_id}"
            raise AccessDeniedError(
                f"the bearer token does not open {jobs}; nothing was done; its line in the server's token "
                f"file lists the jobs that it opens: {' '.join(grant.patterns)}"
            )
