"""Bearer tokens: the file that lists them, what each opens, and the token of a request."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError

LOG: Final = logging.getLogger("lockgate.http")

SHORTEST: Final = 16
"""Minimum length of a token in characters; a shorter one could be guessed."""

EXAMPLE: Final = (
    "a line looks like `3f9c…e1 sales-* flights-*`: a token, and the jobs that it opens, * for all"
)

ALL: Final = "*"
"""Name of a request that concerns all that the server has."""


class UnauthenticatedError(AccessDeniedError):
    """The client of a request is unknown."""


class Grant(msgspec.Struct, frozen=True):
    """The patterns of the names that a token opens."""

    patterns: tuple[str, ...]

    def opens(self, name: str) -> bool:
        """Return whether the token opens a name; only the pattern `*` opens `ALL`."""
        if name == ALL:
            return ALL in self.patterns
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


class TokenFile:
    """Tokens that a server accepts, from a file that is read again when it has changed.

    If a change cannot be read, it is logged and the earlier tokens stay valid: editing the file locks no
    client out.

    Args:
        path: Path of the file; only its owner and group may read or write it.

    Raises:
        InvalidInputError: The file cannot be read, others may read or write it, or a line is malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._signature = _signature(path)
        self._grants = _read_grants(path)

    def grant_of(self, authorization: str) -> Grant:
        """Return what the token of a request opens.

        Args:
            authorization: The request's header of this name; empty if it has none.

        Raises:
            UnauthenticatedError: There is no token, or an unknown one.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise UnauthenticatedError(
                "this blob server requires a bearer token, and the request has none; nothing was done; "
                "set LOCKGATE_BLOB_TOKEN_FILE to a file whose first line is a token"
            )
        self._refresh()
        # Digests, so that the time of the look-up does not depend on how much of a token was guessed.
        grant = self._grants.get(_digest(token.strip()))
        if grant is None:
            raise UnauthenticatedError(
                "the bearer token is not known to this blob server; nothing was done; ask its operator "
                "for one, or to correct the token file"
            )
        return grant

    def _refresh(self) -> None:
        signature = _signature(self.path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._grants = _read_grants(self.path)
        except InvalidInputError as error:
            LOG.warning("%s; the earlier tokens stay valid", error)


def first_token(path: Path) -> str:
    """Return the first token of a file, which a client sends.

    Raises:
        InvalidInputError: The file cannot be read, others may read or write it, or it has no token.
    """
    for _, token, _ in _token_lines(path):
        return token
    raise InvalidInputError(f"token file {path} has no token; a client sends the one in its first line")


def _read_grants(path: Path) -> dict[bytes, Grant]:
    """Return what each token of a server's file opens, by digest."""
    grants: dict[bytes, Grant] = {}
    for number, token, patterns in _token_lines(path):
        if not patterns:
            raise InvalidInputError(f"token file {path}, line {number}, opens nothing; {EXAMPLE}")
        digest = _digest(token)
        if digest in grants:
            raise InvalidInputError(f"token file {path}, line {number}: this token appears twice")
        grants[digest] = Grant(patterns)
    if not grants:
        raise InvalidInputError(f"token file {path} has no token; {EXAMPLE}")
    return grants


def _token_lines(path: Path) -> list[tuple[int, str, tuple[str, ...]]]:
    """Return the number, the token and the patterns of each line that has a token."""
    try:
        with path.open(encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IROTH | stat.S_IWOTH):
                raise InvalidInputError(
                    f"token file {path} can be read or written by everybody; run `chmod 600 {path}`, and "
                    "make new tokens"
                )
            lines = file.read().splitlines()
    except OSError as error:
        raise InvalidInputError(f"token file {path}: {error.strerror}; name one that can be read") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"token file {path} is not plain text; {EXAMPLE}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        token, *patterns = line.partition("#")[0].split() or [""]
        if token and len(token) < SHORTEST:
            raise InvalidInputError(
                f"token file {path}, line {number}: the token is shorter than {SHORTEST} characters; make "
                "one with `openssl rand -hex 32`"
            )
        if token:
            found.append((number, token, tuple(patterns)))
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _signature(path: Path) -> tuple[int, ...]:
    """Return values that change with the file; empty if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
