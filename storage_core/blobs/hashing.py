"""The hash of bytes as they pass: of large pieces beside whatever else is done with them, on another core."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

BESIDE_BYTES: Final = 256 * 1024
"""A piece as large as this takes longer to hash than to hand to another thread."""


class Hashing:
    """SHA-256 of pieces. Use `close` at the end; not safe to use from several threads at once."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._beside: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def update(self, data: bytes) -> None:
        """Hash a piece next; a large one while the caller goes on: one at a time is held for that."""
        self._wait()
        if len(data) < BESIDE_BYTES:
            self._hash.update(data)
            return
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, thread_name_prefix="lockgate-hash")
        self._last = self._beside.submit(self._hash.update, data)

    def hexdigest(self) -> str:
        """Return the hash of all pieces so far, in hexadecimal."""
        self._wait()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Let go of the thread."""
        if self._beside is not None:
            self._beside.shutdown()

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()
