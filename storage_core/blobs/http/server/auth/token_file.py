"""A file of bearer tokens, as the server knows them and as a client shows one."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.blobs.http.server.auth.policy import ALL_JOBS
from lockgate.storage_core.errors import InvalidInputError

LOG: Final = logging.getLogger("lockgate.blobs")
SHORTEST: Final = 16
"""Characters: a shorter token could be guessed."""

_EXAMPLE: Final = (
    "a line looks like `3f9c…e1 sales-* flights-*`: a token, and the jobs that it opens, * for all"
)


class Grant(msgspec.Struct, frozen=True):
    """A token's digest, and the jobs that it opens."""

    digest: bytes
    jobs: tuple[str, ...]

    def opens(self, job_id: str) -> bool:
        """Tell whether it opens a job; `*` stands for all jobs, and only `*` opens it."""
        if job_id == ALL_JOBS:
            return ALL_JOBS in self.jobs
        return any(fnmatchcase(job_id, pattern) for pattern in self.jobs)


class TokenFile:
    """The tokens of a file, read again whenever the file has changed.

    A change that cannot be read is logged, and the tokens from before stay: a file that is being edited locks
    nobody out.

    Args:
        path: Of the file; nobody but its owner and group may read or write it.

    Raises:
        InvalidInputError: It is not there, others may read or write it, or a line is malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changing = threading.Lock()
        self._seen = _signature(path)
        self._grants = _grants(path)

    def grant_of(self, token: str) -> Grant | None:
        """Return what a token opens, None if it is not known; it takes as long whichever token it is."""
        self._refresh()
        digest = _digest(token)
        found = None
        for grant in self._grants:
            if hmac.compare_digest(grant.digest, digest):
                found = grant
        return found

    def _refresh(self) -> None:
        seen = _signature(self.path)
        if seen == self._seen:
            return
        with self._changing:
            self._seen = seen
            try:
                self._grants = _grants(self.path)
            except InvalidInputError as error:
                LOG.warning("%s; the tokens from before are still taken", error)


def first_token(path: Path) -> str:
    """Return the first token of a file: the one that a client shows.

    Raises:
        InvalidInputError: It is not there, others may read or write it, or it has none.
    """
    for _, token, _ in _lines(path):
        return token
    raise InvalidInputError(f"token file {path} has no token; its first line is the one that is shown")


def _grants(path: Path) -> tuple[Grant, ...]:
    grants: dict[bytes, Grant] = {}
    for number, token, jobs in _lines(path):
        if not jobs:
            raise InvalidInputError(f"token file {path}, line {number}, opens no job; {_EXAMPLE}")
        digest = _digest(token)
        if digest in grants:
            raise InvalidInputError(f"token file {path}, line {number}: this token stands there twice")
        grants[digest] = Grant(digest, jobs)
    if not grants:
        raise InvalidInputError(f"token file {path} has no token; {_EXAMPLE}")
    return tuple(grants.values())


def _lines(path: Path) -> list[tuple[int, str, tuple[str, ...]]]:
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
        raise InvalidInputError(f"token file {path} is not plain text; {_EXAMPLE}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        token, *jobs = line.partition("#")[0].split() or [""]
        if token and len(token) < SHORTEST:
            raise InvalidInputError(
                f"token file {path}, line {number}: the token is shorter than {SHORTEST} characters; make "
                "one with `openssl rand -hex 32`"
            )
        if token:
            found.append((number, token, tuple(jobs)))
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _signature(path: Path) -> tuple[int, ...]:
    """What changes whenever the file does; empty while it is not there."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
