"""Bytes that are gathered: in their order, copied only where that is cheaper."""

from __future__ import annotations

import random

from lockgate.storage_core.stores.gathered_bytes import SMALL_BYTES, GatheredBytes


def test_pieces_of_all_sizes_stay_in_order() -> None:
    drawn = random.Random(1)
    for _ in range(50):
        gathered, expected = GatheredBytes(), b""
        for _ in range(drawn.randrange(8)):
            piece = drawn.randbytes(drawn.choice((0, 1, 100, SMALL_BYTES - 1, SMALL_BYTES, 2 * SMALL_BYTES)))
            gathered.add(memoryview(bytearray(piece)) if drawn.random() < 0.5 else piece)
            expected += piece
            if drawn.random() < 0.2:
                assert gathered.joined() == expected
        assert len(gathered) == len(expected)
        assert gathered.take() == expected
        assert (len(gathered), gathered.joined()) == (0, b"")


def test_one_large_piece_is_not_copied() -> None:
    gathered, piece = GatheredBytes(), bytes(SMALL_BYTES)
    gathered.add(piece)
    assert gathered.take() is piece


def test_a_buffer_that_its_owner_changes_later_is_copied() -> None:
    gathered, buffer = GatheredBytes(), bytearray(SMALL_BYTES)
    gathered.add(memoryview(buffer))
    buffer[0] = 1
    assert gathered.joined() == bytes(SMALL_BYTES)
