"""A release of a claimed name releases only the claim it was made for, not a later one."""

from __future__ import annotations

import pytest

from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.claims import Claims
from lockgate.storage_core.journal.entries.claim_entries import Claim, ClaimName, ReleaseName
from lockgate.storage_core.journal.read.snapshot_read import Reading

STORE = "s3://lake"


def claim(body: str) -> ClaimName:
    return ClaimName(store=STORE, name="a", body=body)


def standing(journal: Journal) -> list[Claim]:
    with journal.reading() as reading:
        return list(reading.where(Claim, {}))


def test_a_late_release_does_not_release_the_claim_that_replaced_its_own(
    journal: Journal,
) -> None:
    journal.apply(claim("first"))
    (first,) = standing(journal)
    journal.apply(ReleaseName.of(first))
    journal.apply(claim("second"))

    journal.apply(ReleaseName.of(first))
    (second,) = standing(journal)
    assert second.body == "second"

    journal.apply(ReleaseName.of(second))
    assert standing(journal) == []


def test_a_name_claimed_by_another_between_the_read_and_the_release_stays_claimed(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.apply(claim("first"))
    find = Reading.find

    def find_and_lose(reading: Reading, *key: object) -> object:
        found = find(reading, *key)  # type: ignore[arg-type]
        monkeypatch.undo()
        journal.apply(ReleaseName.of(found[0]))  # type: ignore[arg-type]
        journal.apply(claim("another's"))
        return found

    monkeypatch.setattr(Reading, "find", find_and_lose)
    Claims(journal, STORE).release(["a"])

    assert [claim.body for claim in standing(journal)] == ["another's"]
