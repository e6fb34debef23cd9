"""Stamps: their order, and their text form for users and headers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal import Stamp

COUNTS = st.integers(0, 10**18 - 1)
STAMPS = st.builds(Stamp, COUNTS, COUNTS)


@given(STAMPS)
def test_a_stamp_survives_the_round_trip_through_text(stamp: Stamp) -> None:
    assert Stamp.parse(str(stamp)) == stamp
    assert decode_json(msgspec.json.encode(stamp), Stamp) == stamp


@given(STAMPS, STAMPS)
def test_stamps_are_ordered_by_epoch_and_then_by_sequence(one: Stamp, other: Stamp) -> None:
    assert (one < other) == ((one.epoch, one.sequence) < (other.epoch, other.sequence))


def test_the_default_stamp_is_the_oldest() -> None:
    assert Stamp() == Stamp(0, 0)
    assert Stamp() < Stamp(0, 1) < Stamp(1, 0)
    assert str(Stamp(3, 512)) == "3.512"


@pytest.mark.parametrize("text", ["", "1", "1.2.3", "-1.2", "1.2\n", f"{10**18}.1", "१.२"])
def test_text_that_is_not_a_stamp_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"is not a stamp such as 3\.512"):
        Stamp.parse(text)


@pytest.mark.parametrize("text", ['{"epoch":-1,"sequence":1}', '{"epoch":1,"sequence":1,"more":1}', "[1,2]"])
def test_a_record_that_is_not_a_stamp_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_json(text, Stamp)
