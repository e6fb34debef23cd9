"""The bytes that a writer keeps until they are durable: sent once, and again from where members lost them."""

from __future__ import annotations

from lockgate.storage_core.files.writing.pipeline import UnflushedBytes
from lockgate.storage_core.stores.gathered_bytes import SMALL_BYTES


def offsets(kept: UnflushedBytes) -> tuple[int, int, int]:
    return kept.begin, kept.sent, kept.end


def test_one_piece_is_not_copied() -> None:
    kept, data = UnflushedBytes(0), bytes(SMALL_BYTES)
    kept.add(data)
    assert kept.unsent() is data
