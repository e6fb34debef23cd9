"""Mutants of entries in pages, of lists of jobs, and of forks."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules.mutant import BLOB_REGISTRY, Edit, Mutant

FOLDS: Final = "tests/unit/journal/test_bounded_folds.py::test_"

MUTANTS: Final = (
    Mutant(
        "renew-a-half-abandoned-set",
        "the first page of an abandoned set deletes its lease",
        [
            Edit(
                f"{BLOB_REGISTRY}/upload_sets.py",
                "            state.delete(lease)\n        return _stage_those_in",
                "            pass\n        return _stage_those_in",
            )
        ],
        f"{FOLDS}an_upload_set_is_abandoned_page_by_page_and_another_sweep_goes_on_after_a_crash",
    ),
    Mutant(
        "abandon-a-set-in-one-entry",
        "a sweep gives up a set page by page",
        [
            Edit(
                "storage_core/blobs/sweep/lapsed_sets.py",
                "return [*(msgspec.structs.replace(lapsed, page=page) for page in keys), lapsed]",
                "return [lapsed]",
            )
        ],
        f"{FOLDS}an_upload_set_is_abandoned_page_by_page_and_another_sweep_goes_on_after_a_crash",
    ),
    Mutant(
        "forget-a-job-in-one-entry",
        "a rescan forgets the tasks of a job page by page",
        [
            Edit(
                "storage_core/commit/recovery/registry_rebuild.py",
                "                forget_attempts(journal, entry)\n",
                "                continue\n",
            )
        ],
        f"{FOLDS}a_rescan_forgets_a_job_page_by_page_and_another_one_goes_on_after_a_crash",
    ),
    Mutant(
        "repeat-the-last-job-of-a-page",
        "a page of jobs begins after the last job of the page before",
        [
            Edit(
                "storage_core/commit/registry/job_lists.py",
                "            found = found.where(tuple_(*key.values()) > tuple_(*given))",
                "            found = found.where(tuple_(*key.values()) >= tuple_(*given))",
            )
        ],
        "tests/unit/plugins/web/test_jobs.py::"
        "test_a_page_continues_after_the_last_job_in_either_order_and_by_name",
    ),
    Mutant(
        "sort-names-by-the-locale",
        "names are in the order of code points, which their index has",
        [
            Edit(
                "storage_core/commit/registry/job_lists.py",
                "return _ordered(reading, table_of(Job).c.name)",
                "return table_of(Job).c.name",
            )
        ],
        "tests/unit/journal/test_job_lists.py::"
        "test_no_page_of_jobs_of_one_name_misses_one_in_a_database_with_another_locale",
    ),
    Mutant(
        "collect-the-parents-garbage",
        "a forked child never collects what it inherits",
        [Edit("storage_core/forks.py", "        gc.freeze()\n", "")],
        "tests/unit/test_fork_garbage.py::test_a_child_collects_its_own_garbage_and_never_its_parents",
    ),
    Mutant(
        "switch-collection-on-at-a-fork",
        "a fork leaves garbage collection as it was",
        [Edit("storage_core/forks.py", "self._collects = gc.isenabled()", "self._collects = True")],
        "tests/unit/test_fork_garbage.py::test_a_fork_leaves_garbage_collection_switched_off",
    ),
)
