"""The recovery table: every situation meets one row, and an answer that costs a listing is asked for once."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from lockgate.storage_core.commit.leases.protocol import LeaseState
from lockgate.storage_core.commit.records.job import OnLapse
from lockgate.storage_core.commit.records.phase import UNDECIDED, JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RECOVERY, RecoveryAction, choose_action

POLICIES: tuple[OnLapse, ...] = get_args(OnLapse)


@pytest.mark.parametrize(("found", "lease"), list(product(JobPhase, LeaseState)))
def test_every_situation_meets_exactly_one_row(found: JobPhase, lease: LeaseState) -> None:
    for young, on_lapse in product((True, False), POLICIES):
        rows = [
            row
            for row in RECOVERY
            if found in row.phases
            and lease in row.leases
            and row.young in {None, young}
            and row.on_lapse in {None, on_lapse}
        ]
        assert len(rows) == 1
        chosen, _ = choose_action(found, lease, on_lapse=on_lapse, is_young=lambda young=young: young)
        assert chosen is rows[0].action


def test_a_decided_job_is_never_left_alone_and_never_aborted() -> None:
    for found, lease, on_lapse in product(set(JobPhase) - UNDECIDED, LeaseState, POLICIES):
        action, why = choose_action(found, lease, on_lapse=on_lapse, is_young=lambda: True)
        assert action in {RecoveryAction.ROLL_FORWARD, RecoveryAction.CLEAN_UP}
        assert "{" not in why


@pytest.mark.parametrize(("lease", "listings"), [(LeaseState.UNKNOWN, 1), (LeaseState.LAPSED, 0)])
def test_the_age_is_asked_once_and_only_where_it_counts(lease: LeaseState, listings: int) -> None:
    asked: list[None] = []

    def is_young() -> bool:
        asked.append(None)
        return False

    for count, on_lapse in enumerate(POLICIES, start=1):
        choose_action(JobPhase.OPEN, lease, on_lapse=on_lapse, is_young=is_young)
        assert len(asked) == count * listings
