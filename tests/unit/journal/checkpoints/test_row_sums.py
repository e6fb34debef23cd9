"""Sums of hashes are equal for the same rows in any order, and for no others."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.storage_core.journal.checkpoint.row_sums import RowSums
from lockgate.storage_core.journal.entries.claim_entries import Claim
from lockgate.storage_core.journal.entries.lease_entries import Lease, Standing
from lockgate.storage_core.journal.entries.state import Row

CLAIMS = st.builds(
    Claim,
    store=st.sampled_from(["a", "b"]),
    name=st.sampled_from(["a", "b"]),
    body=st.sampled_from(["", "a", "b"]),
    claimed_s=st.sampled_from([0.0, 1.0, 2.0]),
)


def summed(*rows: Row) -> RowSums:
    sums = RowSums()
    assert list(sums.added(rows)) == list(rows)
    return sums


@settings(deadline=None)
@given(st.lists(CLAIMS, max_size=5), st.lists(CLAIMS, max_size=5), st.randoms())
def test_two_sums_are_equal_if_and_only_if_the_rows_are(
    rows: list[Claim], others: list[Claim], order: random.Random
) -> None:
    shuffled = list(rows)
    order.shuffle(shuffled)
    assert summed(*rows) == summed(*shuffled)
    is_same = sorted(map(repr, rows)) == sorted(map(repr, others))
    assert (summed(*rows) == summed(*others)) is is_same


@settings(deadline=None)
@given(st.lists(CLAIMS, max_size=5), st.none() | CLAIMS, st.none() | CLAIMS)
def test_a_replaced_row_counts_as_the_new_one_alone(
    rows: list[Claim], old: Claim | None, new: Claim | None
) -> None:
    sums = summed(*rows, *([] if old is None else [old]))
    sums.replace([(old, new)])
    assert sums == summed(*rows, *([] if new is None else [new]))


def test_the_columns_that_no_entry_sets_do_not_count() -> None:
    def lease(time_s: float, holder: str = "h") -> Lease:
        return Lease(
            resource="r", holder=holder, epoch=1, sequence=1, standing=Standing.HELD, soft_s=1.0,
            hard_s=2.0, **dict.fromkeys(Lease.SOFT, time_s),
        )  # fmt: skip

    assert summed(lease(1.0)) == summed(lease(2.0))
    assert summed(lease(1.0)) != summed(lease(1.0, "other"))
