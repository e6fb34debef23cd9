"""Mutants of leases, renewals and reads at observers."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules.mutant import JOURNAL, Edit, Mutant

OBSERVING: Final = (
    "tests/unit/journal/observers/test_client.py::test_a_read_checks_the_stamp_of_the_same_state_it_reads"
)

MUTANTS: Final = (
    Mutant(
        "renew-any-stamp",
        "a renewal compares the stamp, so that a fenced holder gets an error",
        [
            Edit(
                f"{JOURNAL}/leases/renewal.py",
                "LEASE.c.holder == bindparam(_HOLDER)",
                "LEASE.c.resource != bindparam(_HOLDER)",
            ),
            Edit(
                f"{JOURNAL}/leases/renewal.py",
                " and stamp.sequence == sequence and stamp.epoch == epoch",
                "",
            ),
        ],
    ),
    Mutant(
        "renew-the-dropped",
        "a renewal does not renew a lease that its holder has dropped",
        [
            Edit(
                f"{JOURNAL}/leases/renewal.py",
                "            dropped.append(resource)",
                "            pass",
            )
        ],
        "tests/unit/journal/test_renewals.py"
        "::test_a_lease_that_its_holder_gave_up_lapses_although_it_renews_others",
    ),
    Mutant(
        "take-beside-a-renewal",
        "a write waits for a renewal of the lease that it reads",
        [Edit(f"{JOURNAL}/database/row_access.py", "self._lock and kind is Lease", "False")],
        "tests/unit/journal/test_renewing_beside_writes.py"
        "::test_a_recovery_beside_a_renewal_that_is_not_yet_committed_is_refused",
    ),
    Mutant(
        "check-outside-the-snapshot",
        "an observer's read checks the head of the state that it reads",
        [
            Edit(
                f"{JOURNAL}/observers/hot_standby.py",
                "yield reading, _reached(reading, identity, stamps, true() if serves is None else serves)",
                "newest = _reached(reading, identity, stamps, true() if serves is None else serves)\n"
                "    with database.snapshot() as connection:\n"
                "        yield Reading(connection, database, journal), newest",
            )
        ],
        OBSERVING,
    ),
    Mutant(
        "take-what-was-renewed",
        "a lease that was renewed after it was watched is not taken",
        [
            Edit(
                f"{JOURNAL}/entries/lease_entries.py",
                "is_same = lease.stamp == seen.stamp and lease.renewed_s <= seen.renewed_s",
                "is_same = lease.stamp == seen.stamp",
            )
        ],
    ),
    Mutant(
        "free-any-stamp",
        "suspending and freeing compare the stamp",
        [
            Edit(
                f"{JOURNAL}/entries/lease_entries.py",
                "if lease is None or lease.stamp != stamp or lease.standing is Standing.FREE:",
                "if lease is None or lease.standing is Standing.FREE:",
            )
        ],
    ),
    Mutant(
        "take-with-old-stamp",
        "taking a lease issues a new stamp",
        [
            Edit(
                f"{JOURNAL}/entries/lease_entries.py",
                "epoch=moment.stamp.epoch,\n                sequence=moment.stamp.sequence,",
                "epoch=(lease or moment.stamp).epoch, sequence=(lease or moment.stamp).sequence,",
            )
        ],
    ),
    Mutant(
        "recover-a-live-lease",
        "recovery starts only when the lease has lapsed",
        [
            Edit(
                f"{JOURNAL}/entries/lease_entries.py",
                '"recover": frozenset({LeaseState.FREE, LeaseState.HARD})',
                '"recover": frozenset({LeaseState.FREE, LeaseState.HELD, LeaseState.HARD})',
            )
        ],
    ),
    Mutant(
        "recover-in-safe-mode",
        "nothing is recovered in safe mode",
        [Edit(f"{JOURNAL}/entries/lease_entries.py", " and moment.is_safe_mode", " and False")],
    ),
)
