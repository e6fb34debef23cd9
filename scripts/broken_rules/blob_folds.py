"""Mutants of the entries about blobs and their upload sets."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules.mutant import BLOB_REGISTRY, Edit, Mutant

BLOBS: Final = "tests/model/blobs/test_blob_properties.py::test_blobs_are_kept_and_deleted_as_in_the_model"
CLOCK_JUMPS: Final = "tests/unit/blobs/test_clock_jumps.py::test_"
SWEEP: Final = "tests/unit/blobs/test_sweep.py::test_"

MUTANTS: Final = (
    Mutant(
        "release-without-lease",
        "a driver that another one replaced releases nothing",
        [
            Edit(
                "storage_core/blobs/registry/references.py",
                "            held(state, self.resource, self.stamp)\n",
                "            pass\n",
            )
        ],
        "tests/unit/journal/test_bounded_folds.py"
        "::test_a_stalled_driver_releases_and_records_nothing_once_another_has_taken_over[sqlite-2]",
    ),
    Mutant(
        "delete-before-an-interval",
        "an unreferenced blob lives a whole interval",
        [Edit(f"{BLOB_REGISTRY}/removals.py", "blob.staged_s + self.staged_for_s > moment.at_s", "False")],
        f"{SWEEP}a_job_removed_by_a_concurrent_sweep_costs_a_new_job_of_its_id_no_blobs",
    ),
    Mutant(
        "delete-what-is-kept",
        "only what is staged is deleted",
        [
            Edit(
                f"{BLOB_REGISTRY}/removals.py",
                "            if blob.staged_s is None or",
                "            if blob.staged_s is not None and",
            ),
            Edit(
                f"{BLOB_REGISTRY}/removals.py",
                "if references_to(state, blob):  # impossible",
                "if False:  # impossible",
            ),
        ],
        "tests/unit/journal/test_job_blobs.py"
        "::test_a_sweep_that_chose_a_blob_before_its_reference_does_not_delete_it",
    ),
    Mutant(
        "close-a-renewed-set",
        "a set that was renewed after it was seen to lapse stays open",
        [
            Edit(
                f"{BLOB_REGISTRY}/upload_sets.py",
                "state_for(self.seen, lease, moment.at_s)",
                "state_for(None, lease, moment.at_s)",
            )
        ],
        f"{CLOCK_JUMPS}a_renewal_between_the_second_look_and_the_entry_keeps_the_set[sqlite]",
    ),
    Mutant(
        "refer-to-what-goes",
        "a blob that is being deleted takes no reference",
        [
            Edit(
                f"{BLOB_REGISTRY}/references.py",
                "if blob is None or blob.deleting_s is not None:",
                "if blob is None:",
            )
        ],
        BLOBS,
    ),
    Mutant(
        "keep-what-nothing-keeps",
        "dropping the last reference stages the blob",
        [
            Edit(
                f"{BLOB_REGISTRY}/references.py",
                "if blob.staged_s is None and not blob.upload_set:",
                "if False:",
            )
        ],
        BLOBS,
    ),
    Mutant(
        "stage-within-a-set",
        "a set keeps its blobs until it is complete",
        [
            Edit(
                f"{BLOB_REGISTRY}/references.py",
                "blob.staged_s is None and not blob.upload_set:",
                "blob.staged_s is None:",
            )
        ],
        BLOBS,
    ),
    Mutant(
        "abandon-a-live-set",
        "a set is abandoned only when its lease has lapsed",
        [
            Edit(
                f"{BLOB_REGISTRY}/upload_sets.py",
                "not in {LeaseState.HARD, LeaseState.FREE}:",
                "not in set(LeaseState):",
            )
        ],
        "tests/unit/blobs/test_server.py::test_another_process_renews_a_set_opened_on_its_behalf",
    ),
    Mutant(
        "stage-what-a-set-has-referred-to",
        "a set that is closed stages only what nothing refers to",
        [
            Edit(
                f"{BLOB_REGISTRY}/upload_sets.py",
                "staged_s = None if references_to(state, blob) else moment.at_s",
                "staged_s = moment.at_s",
            )
        ],
        BLOBS,
    ),
    Mutant(
        "put-into-a-closed-set",
        "bytes are recorded only while their set is open",
        [
            Edit(
                f"{BLOB_REGISTRY}/upload_sets.py",
                '        if opened is None:\n            raise FencedError(\n                f"blob ',
                '        if False:\n            raise FencedError(\n                f"blob ',
            ),
            Edit(
                f"{BLOB_REGISTRY}/upload_sets.py",
                "        if self.joins and opened.job_id != self.job_id:",
                "        if self.joins and opened is not None and opened.job_id != self.job_id:",
            ),
        ],
        BLOBS,
    ),
)
