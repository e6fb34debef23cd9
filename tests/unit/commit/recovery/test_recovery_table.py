"""The recovery table: each situation has exactly one row, and the expensive listing is made at most once."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.records.job_record import OnLapse
from lockgate.storage_core.commit.records.phase import UNDECIDED, JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RECOVERY, RecoveryAction, choose_action

POLICIES: tuple[OnLapse, ...] = get_args(OnLapse)


@pytest.mark.parametrize(("found", "lease"), list(product(JobPhase, JobLeaseState)))
def test_every_situation_matches_exactly_one_row(found: JobPhase, lease: JobLeaseState) -> None:
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
    decided = set(JobPhase) - UNDECIDED - {JobPhase.QUARANTINED}
    for found, lease, on_lapse in product(decided, JobLeaseState, POLICIES):
        action, why = choose_action(found, lease, on_lapse=on_lapse, is_young=lambda: True)
        assert action in {RecoveryAction.ROLL_FORWARD, RecoveryAction.CLEAN_UP}
        assert "{" not in why


@pytest.mark.parametrize("lease", JobLeaseState)
def test_a_job_in_quarantine_is_left_to_its_operator(lease: JobLeaseState) -> None:
    for on_lapse in POLICIES:
        action, _ = choose_action(JobPhase.QUARANTINED, lease, on_lapse=on_lapse, is_young=lambda: False)
        assert action is RecoveryAction.LEAVE


@pytest.mark.parametrize(("lease", "listings"), [(JobLeaseState.UNKNOWN, 1), (JobLeaseState.LAPSED, 0)])
def test_the_age_is_read_once_and_only_where_it_matters(lease: JobLeaseState, listings: int) -> None:
    calls: list[None] = []

    def is_young() -> bool:
        calls.append(None)
        return False

    for count, on_lapse in enumerate(POLICIES, start=1):
        choose_action(JobPhase.OPEN, lease, on_lapse=on_lapse, is_young=is_young)
        assert len(calls) == count * listings
