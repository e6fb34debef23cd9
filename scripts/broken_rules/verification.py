"""Mutants of verifying, replaying and what damage of a database is taken for."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules.mutant import JOURNAL, Edit, Mutant

DAMAGE: Final = "tests/unit/journal/checkpoints/test_damage.py::"
POSTGRESQL_DAMAGE: Final = "tests/unit/journal/checkpoints/test_postgresql_damage.py::"

MUTANTS: Final = (
    Mutant(
        "load-what-a-replay-has-overwritten",
        "a replay reads a changed row before it writes it",
        [
            Edit(
                f"{JOURNAL}/checkpoint/replay.py",
                "    state.load(state.changes)  # before they are overwritten, for `replacements`\n"
                "    rows.write(state.changes, state.absent)\n",
                "    rows.write(state.changes, state.absent)\n    state.load(state.changes)\n",
            )
        ],
        "tests/unit/journal/test_families.py::"
        "test_a_row_that_an_entry_writes_twice_and_never_reads_is_verified[sqlite]",
    ),
    Mutant(
        "trust-request-ids",
        "request ids are compared with the newest checkpoint's",
        [
            Edit(
                f"{JOURNAL}/checkpoint/verify.py",
                "if request_sums(self._reading, *self._kept(stamp)) != self._requests:",
                "if not self._requests:",
            )
        ],
        f"{DAMAGE}test_a_checkpoint_with_other_request_ids_is_not_verified",
    ),
    Mutant(
        "trust-the-tables",
        "the tables are compared with the folded entries",
        [
            Edit(
                f"{JOURNAL}/checkpoint/verify.py",
                "if table_sums(self._reading) != self._sums:",
                "if not self._sums:",
            )
        ],
        "tests/unit/journal/checkpoints/test_verifying.py::test_verifying_names_each_error",
    ),
    Mutant(
        "count-what-no-entry-sets",
        "the sums of rows leave out the columns that no entry sets",
        [Edit(f"{JOURNAL}/checkpoint/row_sums.py", " if name not in kind.SOFT)", ")")],
        "tests/unit/journal/checkpoints/test_row_sums.py::test_the_columns_that_no_entry_sets_do_not_count",
    ),
    Mutant(
        "prune-with-damaged-pages",
        "no checkpoint counts as verified while a page is damaged",
        [
            Edit(
                f"{JOURNAL}/checkpoint/verify.py",
                "        if pages.findings:\n            self.good.clear()  # so that no entry is pruned\n",
                "",
            )
        ],
        f"{DAMAGE}test_nothing_is_pruned_after_a_damaged_index_was_found",
    ),
    Mutant(
        "take-a-missing-file-for-an-outage",
        "a missing file of PostgreSQL is damage",
        [Edit(f"{JOURNAL}/database/damage.py", 'frozenset({"58P01", "58030"})', "frozenset[str]()")],
        f"{POSTGRESQL_DAMAGE}test_reading_and_writing_beside_damaged_files_works_or_reports_damage",
    ),
    Mutant(
        "take-an-internal-error-for-an-outage",
        "an internal error of PostgreSQL is damage",
        [
            Edit(
                f"{JOURNAL}/database/damage.py",
                "return state.startswith(_INTERNAL) and not",
                'return state in {"XX001", "XX002"} and not',
            )
        ],
        f"{POSTGRESQL_DAMAGE}test_an_internal_error_is_damage_unless_two_commands_met",
    ),
    Mutant(
        "take-two-commands-for-damage",
        "two commands that met are no damage",
        [
            Edit(
                f"{JOURNAL}/database/damage.py",
                "for words in _CONCURRENT)",
                "for words in ())",
            )
        ],
        f"{POSTGRESQL_DAMAGE}test_an_internal_error_is_damage_unless_two_commands_met",
    ),
    Mutant(
        "take-a-refused-connection-for-an-outage",
        "a database whose catalogue lacks a file is damaged",
        [
            Edit(
                f"{JOURNAL}/database/damage.py",
                "if state is None or state in _FILE:",
                "if state is None:\n        return False\n    if state in _FILE:",
            )
        ],
        f"{POSTGRESQL_DAMAGE}test_the_command_verify_ends_with_the_code_of_findings",
    ),
    Mutant(
        "name-no-relation",
        "an error names the damaged table or index",
        [
            Edit(
                f"{JOURNAL}/database/damage.py",
                "return _relation(connection, message) or Damaged()",
                "return Damaged()",
            )
        ],
        f"{POSTGRESQL_DAMAGE}test_the_command_verify_ends_with_the_code_of_findings",
    ),
    Mutant(
        "stop-at-a-text-that-is-not-utf-8",
        "a text that cannot be decoded is a finding beside the others",
        [
            Edit(
                f"{JOURNAL}/read/snapshot_read.py",
                "except (msgspec.ValidationError, UnicodeDecodeError) as error:",
                "except msgspec.ValidationError as error:",
            )
        ],
        f"{POSTGRESQL_DAMAGE}test_verifying_reports_damaged_files_and_names_what_is_damaged",
    ),
    Mutant(
        "prune-from-the-first-entry",
        "a slice of pruning reads only its own range of the index",
        [
            Edit(
                f"{JOURNAL}/checkpoint/prune.py",
                "ENTRY.c.sequence > pruned, ENTRY.c.sequence <= until)",
                "ENTRY.c.sequence <= until)",
            )
        ],
        "tests/unit/journal/checkpoints/test_pruning.py::test_each_slice_reads_only_its_own_entries",
    ),
)
