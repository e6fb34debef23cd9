"""The server's file of bearer tokens and of the jobs that they open."""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.blobs.http.server.auth.policy import ALL_JOBS
from lockgate.storage_core.blobs.http.token_lines import EXAMPLE, read_token_lines
from lockgate.storage_core.errors import InvalidInputError

LOG: Final = logging.getLogger("lockgate.blobs")


class Grant(msgspec.Struct, frozen=True):
    """Digest of a token, and the patterns of the jobs that it opens."""

    digest: bytes
    jobs: tuple[str, ...]

    def opens(self, job_id: str) -> bool:
        """Return whether the token opens a job; only the pattern `*` opens `ALL_JOBS`."""
        if job_id == ALL_JOBS:
            return ALL_JOBS in self.jobs
        return any(fnmatchcase(job_id, pattern) for pattern in self.jobs)


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
        if not line.jobs:
            raise InvalidInputError(f"token file {path}, line {line.number}, opens no job; {EXAMPLE}")
        digest = _digest(line.token)
        if digest in grants:
            raise InvalidInputError(f"token file {path}, line {line.number}: this token appears twice")
        grants[digest] = Grant(digest, line.jobs)
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
