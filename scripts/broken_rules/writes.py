"""Mutants of the journal's writes, numbers and identity."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules.mutant import JOURNAL, Edit, Mutant

POLLING: Final = (
    "tests/model/journal/test_journal_polling.py::test_a_reader_does_not_skip_an_entry_that_commits_late"
)
REPLACED: Final = "tests/unit/journal/database/test_replaced_database.py::test_"
PUT_BACK: Final = "tests/unit/journal/database/test_put_back_file.py::test_"
DURABLE: Final = "tests/unit/journal/database/test_durable_server.py::test_"

MUTANTS: Final = (
    Mutant(
        "auto-increment",
        "numbers are taken from the head's row, under its lock",
        [
            Edit(
                f"{JOURNAL}/write/head.py",
                "(head if for_sqlite else head.with_for_update())",
                "head",
            ),
            Edit(
                f"{JOURNAL}/write/transaction.py",
                "stamp = msgspec.structs.replace(head.stamp, sequence=stamp.sequence + 1)",
                'connection.exec_driver_sql("CREATE SEQUENCE IF NOT EXISTS numbers")\n'
                "                number = connection.exec_driver_sql(\"SELECT nextval('numbers')\")\n"
                "                stamp = msgspec.structs.replace(head.stamp, sequence=number.scalar_one())",
            ),
        ],
        POLLING,
    ),
    Mutant(
        "token-before-durable",
        "a process has seen a stamp only when its transaction is durable",
        [
            Edit(
                f"{JOURNAL}/journal.py",
                "write(self.database, self.known, mutations)",
                "write(self.database, self.known, mutations, self.see)",
            ),
            Edit(
                f"{JOURNAL}/write/transaction.py",
                "def write(database: Database, known: Known, mutations: Sequence[Mutation])",
                "def write(database: Database, known: Known, mutations: Sequence[Mutation], see: object)",
            ),
            Edit(
                f"{JOURNAL}/write/transaction.py",
                "[*added, *removals, _move_head(journal, stamp)])\n",
                "[*added, *removals, _move_head(journal, stamp)])\n            see(stamp)\n",
            ),
        ],
    ),
    Mutant(
        "forget-requests",
        "a known request id is answered, not applied again",
        [
            Edit(
                f"{JOURNAL}/write/transaction.py",
                "{request.request_id: request for request in requests}",
                "{}",
            )
        ],
    ),
    Mutant(
        "forget-requests-of-a-group",
        "an id that occurs twice in one group has one effect",
        [Edit(f"{JOURNAL}/write/transaction.py", "requests[mutation.request_id] = entry", "pass")],
        "tests/unit/journal/test_leases.py::test_a_request_that_occurs_twice_in_one_group_has_one_effect",
    ),
    Mutant(
        "write-to-another-journal",
        "a write compares the journal's identity with the one that the process opened",
        [
            Edit(
                f"{JOURNAL}/write/head.py",
                "refuse_other_journal(database.name, known, identity)",
                "pass",
            )
        ],
        f"{REPLACED}a_claim_is_not_accepted_a_second_time_by_a_database_that_was_made_again[sqlite]",
    ),
    Mutant(
        "write-to-an-older-copy",
        "a write compares the head with the newest stamp that the process has seen",
        [Edit(f"{JOURNAL}/write/head.py", "Stamp(epoch, sequence) < known.newest", "False")],
        f"{REPLACED}a_file_that_was_put_back_is_refused_and_not_changed",
    ),
    Mutant(
        "number-epochs-by-one",
        "two standbys promoted from one primary begin different epochs",
        [Edit(f"{JOURNAL}/write/head.py", "last + 1 + secrets.randbelow(_AUTHORS)", "last + 1")],
        f"{REPLACED}two_standbys_promoted_from_one_primary_issue_no_stamp_twice",
    ),
    Mutant(
        "go-on-with-a-copy",
        "a file that was put back from a copy begins a new epoch",
        [Edit(f"{JOURNAL}/write/restored_copy.py", "newest is not None and stamp < newest", "False")],
        f"{PUT_BACK}the_same_stamp_is_not_issued_to_two_holders",
    ),
    Mutant(
        "acknowledge-before-the-commit",
        "the file beside a journal is never ahead of the database",
        [
            Edit(
                f"{JOURNAL}/journal.py",
                "        outcomes = write(self.database, self.known, mutations)\n",
                "        ahead = msgspec.structs.replace(self.seen, sequence=self.seen.sequence + 1)\n"
                "        self.acknowledge(ahead)\n"
                "        outcomes = write(self.database, self.known, mutations)\n",
            ),
            Edit(
                f"{JOURNAL}/journal.py",
                "from pathlib import Path\n",
                "from pathlib import Path\n\nimport msgspec\n",
            ),
        ],
        f"{PUT_BACK}a_write_that_is_not_committed_is_not_acknowledged",
    ),
    Mutant(
        "acknowledge-what-a-crash-loses",
        "a write is durable before it is acknowledged, whatever the server's settings",
        [
            Edit(
                f"{JOURNAL}/database/pipeline.py",
                "THEN set_config('synchronous_commit', 'on', false)",
                "THEN 'off'",
            )
        ],
        f"{DURABLE}acknowledged_entries_survive_a_crash_of_a_server_without_synchronous_commit",
    ),
    Mutant(
        "open-without-fsync",
        "a server that syncs nothing is refused",
        [Edit(f"{JOURNAL}/database/postgresql_engine.py", 'is_primary and fsync == "off"', "False")],
        f"{DURABLE}a_server_without_fsync_is_refused_and_nothing_is_created",
    ),
    Mutant(
        "number-the-refused",
        "a refused mutation takes no number",
        [
            Edit(
                f"{JOURNAL}/write/transaction.py",
                "stamp = msgspec.structs.replace(stamp, sequence=stamp.sequence - 1)",
                "pass",
            )
        ],
    ),
)
