"""The bearer token of a request."""

from __future__ import annotations

from starlette.requests import Request

from lockgate.storage_core.errors import AccessDeniedError
from lockgate.storage_core.http.server.token_file import Grant, TokenFile


class UnauthenticatedError(AccessDeniedError):
    """The client of a request is unknown."""


def grant_of(request: Request, tokens: TokenFile, *, server: str, setting: str) -> Grant:
    """Return what the token of a request opens.

    Args:
        request: The request.
        tokens: Tokens that the server knows.
        server: What messages call the server.
        setting: Variable by which a client names its token file.

    Raises:
        UnauthenticatedError: The request has no token, or an unknown one.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthenticatedError(
            f"this {server} requires a bearer token, and the request has none; nothing was done; "
            f"set {setting} to a file whose first line is a token"
        )
    grant = tokens.grant_of(token.strip())
    if grant is None:
        raise UnauthenticatedError(
            f"the bearer token is not known to this {server}; nothing was done; ask its operator for "
            "one, or to correct the token file"
        )
    return grant
