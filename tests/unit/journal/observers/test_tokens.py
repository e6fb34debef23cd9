"""Session tokens as text, and the stamps that a process has seen."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal import Stamp
from lockgate.storage_core.journal.read.seen_stamps import SeenStamps
from lockgate.storage_core.journal.session_token import AT_LEAST_HEADER, SessionToken
from tests.support.commit.destination import ManualClock


def test_a_token_survives_the_round_trip_through_text() -> None:
    text = "logs=1.9,main=3.512"
    assert str(SessionToken.parse(text)) == text
    assert SessionToken.parse(text).for_journal("main") == (Stamp(3, 512),)
    assert SessionToken.parse(text).for_journal("another") == ()
    assert str(SessionToken.parse("")) == ""


def test_merging_tokens_keeps_the_newest_stamp_of_each_epoch_of_each_journal() -> None:
    merged = SessionToken.parse("main=3.512,logs=1.9").merged(
        SessionToken.parse("main=3.500,logs=1.10,files=1.1")
    )
    assert str(merged) == "files=1.1,logs=1.10,main=3.512"
    # Stamps of two epochs are both kept: it is not yet known whether the older one survived.
    assert str(merged.merged(SessionToken.parse("main=4.513"))) == "files=1.1,logs=1.10,main=3.512,main=4.513"


def test_a_bare_stamp_belongs_to_the_journal_that_the_caller_reads() -> None:
    assert SessionToken.parse("3.512", "main") == SessionToken.parse("main=3.512")
    with pytest.raises(InvalidInputError, match=r"main=3\.512"):
        SessionToken.parse("3.512")


@pytest.mark.parametrize("text", ["main", "main=3", "=3.1", "a b=3.1"])
def test_text_that_is_not_a_token_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"3\.512"):
        SessionToken.parse(text)


@pytest.mark.parametrize("name", [AT_LEAST_HEADER, "Lockgate-At-Least", "lockgate_at_least"])
def test_a_token_is_extracted_from_headers_in_any_case(name: str) -> None:
    headers = {"content-type": "application/json", name: "main=3.512"}
    assert SessionToken.from_headers(headers) == SessionToken.parse("main=3.512")


def test_stamps_seen_meanwhile_by_another_thread_are_not_discarded() -> None:
    seen = SeenStamps(ManualClock())
    seen.add(Stamp(1, 5))
    held = seen.stamps
    seen.add(Stamp(1, 7))
    seen.replace(held, Stamp(1, 6))
    assert seen.newest == Stamp(1, 7)
