"""The bytes that a writer keeps until they are durable: sent once, and again from where members lost them."""

from __future__ import annotations

import pytest

from lockgate.storage_core.files.writing.unflushed_bytes import UnflushedBytes
from lockgate.storage_core.stores.gathered_bytes import SMALL_BYTES


def offsets(kept: UnflushedBytes) -> tuple[int, int, int]:
    return kept.begin, kept.sent, kept.end


def test_bytes_are_joined_for_one_call_and_dropped_once_they_are_durable() -> None:
    kept = UnflushedBytes(10)
    assert kept.unsent() == b""
    for data in (b"ab", b"c"):
        kept.add(data)
    assert (kept.unsent(), offsets(kept)) == (b"abc", (10, 10, 13))
    kept.mark_sent()
    kept.add(b"de")
    assert (kept.unsent(), offsets(kept)) == (b"de", (10, 13, 15))
    kept.mark_sent()
    kept.mark_flushed()
    assert (kept.unsent(), offsets(kept)) == (b"", (15, 15, 15))


@pytest.mark.parametrize("offset", range(10, 16))
def test_what_members_lost_is_sent_again(offset: int) -> None:
    kept = UnflushedBytes(10)
    kept.add(b"abc")
    kept.mark_sent()
    kept.add(b"de")
    kept.send_from(offset)
    assert (kept.unsent(), offsets(kept)) == (b"abcde"[offset - 10 :], (10, offset, 15))
    kept.mark_sent()
    kept.send_from(10)
    assert kept.unsent() == b"abcde"


def test_one_piece_is_not_copied() -> None:
    kept, data = UnflushedBytes(0), bytes(SMALL_BYTES)
    kept.add(data)
    assert kept.unsent() is data
