"""The server's file of bearer tokens and of what they open: jobs, or volumes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.http.token_lines import EXAMPLE, read_token_lines

LOG: Final = logging.getLogger("lockgate.http")

ALL: Final = "*"
"""Name of a request that concerns all that the server has."""


class Grant(msgspec.Struct, frozen=True):
    """Digest of a token, and the patterns of the names that it opens."""

    digest: bytes
    patterns: tuple[str, ...]

    def opens(self, name: str) -> bool:
        """Return whether the token opens a name; only the pattern `*` opens `ALL`."""
        if name == ALL:
            return ALL in self.patterns
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


class TokenFile:
    """Tokens of a file, which is read again when it has changed.

    If a change cannot be read, it is logged and the earlier tokens stay valid: editing the file locks no
    client out.

    Args:
        path: Path of the file; only its owner and group may read or write it.

    Raises:
        InvalidInputError: The file cannot be read, others may read or write it, or a line is malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._signature = _signature(path)
        self._grants = _read_grants(path)

    def grant_of(self, token: str) -> Grant | None:
        """Return the grant of a token, None if it is unknown, in a time that does not depend on the token."""
        self._refresh()
        digest = _digest(token)
        found = None
        for grant in self._grants:
            if hmac.compare_digest(grant.digest, digest):
                found = grant
        return found

    def _refresh(self) -> None:
        signature = _signature(self.path)
        if signature == self._signature:
            return
        with self._lock:
            self._signature = signature
            try:
                self._grants = _read_grants(self.path)
            except InvalidInputError as error:
                LOG.warning("%s; the earlier tokens stay valid", error)


def _read_grants(path: Path) -> tuple[Grant, ...]:
    grants: dict[bytes, Grant] = {}
    for line in read_token_lines(path):
        if not line.patterns:
            raise InvalidInputError(f"token file {path}, line {line.number}, opens nothing; {EXAMPLE}")
        digest = _digest(line.token)
        if digest in grants:
            raise InvalidInputError(f"token file {path}, line {line.number}: this token appears twice")
        grants[digest] = Grant(digest, line.patterns)
    if not grants:
        raise InvalidInputError(f"token file {path} has no token; {EXAMPLE}")
    return tuple(grants.values())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _signature(path: Path) -> tuple[int, ...]:
    """Return values that change with the file; empty if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
