"""Stamps: their order, and how people and headers carry them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal import Stamp

COUNTS = st.integers(0, 10**18 - 1)
STAMPS = st.builds(Stamp, COUNTS, COUNTS)


@given(STAMPS)
def test_a_stamp_is_read_back_as_it_was_written(stamp: Stamp) -> None:
    assert Stamp.parse(str(stamp)) == stamp
    assert msgspec.json.decode(msgspec.json.encode(stamp), type=Stamp) == stamp


@given(STAMPS, STAMPS)
def test_a_later_epoch_is_newer_and_within_one_the_greater_sequence(one: Stamp, other: Stamp) -> None:
    assert (one < other) == ((one.epoch, one.sequence) < (other.epoch, other.sequence))


def test_no_stamp_is_older_than_that_of_nothing() -> None:
    assert Stamp() == Stamp(0, 0)
    assert Stamp() < Stamp(0, 1) < Stamp(1, 0)
    assert str(Stamp(3, 512)) == "3.512"


@pytest.mark.parametrize(
    "text", ["", "1", "1.", ".1", "1.2.3", "-1.2", "1.-2", "a.b", "1 .2", "1.2\n", f"{10**18}.1", "१.२"]
)
def test_a_text_that_is_no_stamp_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"is not a stamp such as 3\.512"):
        Stamp.parse(text)


@pytest.mark.parametrize("text", ['{"epoch":-1,"sequence":1}', '{"epoch":1,"sequence":1,"more":1}', "[1,2]"])
def test_a_record_that_is_no_stamp_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Stamp)
