"""Mutants of verifying, replaying and pruning."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules.mutant import JOURNAL, Edit, Mutant

DAMAGE: Final = "tests/unit/journal/checkpoints/test_damage.py::"

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
                "        if damages:\n            self.good.clear()  # so that no entry is pruned\n",
                "",
            )
        ],
        f"{DAMAGE}test_nothing_is_pruned_after_a_damaged_index_was_found",
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
