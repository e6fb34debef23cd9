"""Hash bytes as they arrive, large pieces in another thread."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

BACKGROUND_BYTES: Final = 256 * 1024
"""Pieces this large take longer to hash than to hand to another thread."""


class Hashing:
    """SHA-256 of pieces of data. Call `close` at the end. Not safe to use from several threads."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._is_inline = False

    def update(self, data: bytes) -> None:
        """Add a piece; a large piece is hashed in the background, one at a time."""
        self._wait()
        if len(data) >= BACKGROUND_BYTES and not self._is_inline:
            with suppress(RuntimeError):  # no new thread, for example at interpreter shutdown
                self._submit(data)
                return
            self._is_inline = True  # the refused piece may be in the queue of a thread that never runs
        self._hash.update(data)

    def hexdigest(self) -> str:
        """Return the hash of all pieces so far, in hexadecimal."""
        self._wait()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Stop the thread."""
        if self._pool is not None:
            self._pool.shutdown()

    def _submit(self, data: bytes) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="lockgate-hash")
        self._last = self._pool.submit(self._hash.update, data)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()
