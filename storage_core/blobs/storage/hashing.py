"""The hash of bytes as they pass: of large pieces beside whatever else is done with them, on another core."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

BESIDE_BYTES: Final = 256 * 1024
"""A piece as large as this takes longer to hash than to hand to another thread."""


class Hashing:
    """SHA-256 of pieces. Use `close` at the end; not safe to use from several threads at once."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._beside: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._is_alone = False

    def update(self, data: bytes) -> None:
        """Hash a piece next; a large one while the caller goes on: one at a time is held for that."""
        self._wait()
        if len(data) >= BESIDE_BYTES and not self._is_alone:
            with suppress(RuntimeError):  # no thread can be had, as when the interpreter ends
                self._begin_beside(data)
                return
            self._is_alone = True  # what was refused may be in the other thread's queue: that is never to run
        self._hash.update(data)

    def hexdigest(self) -> str:
        """Return the hash of all pieces so far, in hexadecimal."""
        self._wait()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Let go of the thread."""
        if self._beside is not None:
            self._beside.shutdown()

    def _begin_beside(self, data: bytes) -> None:
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, thread_name_prefix="lockgate-hash")
        self._last = self._beside.submit(self._hash.update, data)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()
