"""Mutants of sweeps, and of where bytes lie."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules.mutant import Edit, Mutant

BLOBS: Final = "tests/model/blobs/test_blob_properties.py::test_blobs_are_kept_and_deleted_as_in_the_model"
FULL_DISK: Final = "tests/unit/blobs/test_outages.py::test_a_full_disk_fails_the_put_and_leaves_nothing"
JOB_IDS: Final = "tests/unit/blobs/test_job_ids.py::test_"
CLOCK_JUMPS: Final = "tests/unit/blobs/test_clock_jumps.py::test_"
RACES: Final = "tests/unit/blobs/test_races.py::test_"
SWEEP: Final = "tests/unit/blobs/test_sweep.py::test_"
LATE: Final = "tests/unit/blobs/test_late_puts.py::test_"
OWNERS: Final = "tests/unit/blobs/test_store_owner.py::test_"

MUTANTS: Final = (
    Mutant(
        "close-sets-by-the-clock",
        "a clock that jumps closes no live upload set",
        [
            Edit(
                "storage_core/blobs/sweep/lapsed_sets.py",
                "        if lapses_in_s:",
                "        if lapses_in_s and now_s - lease.renewed_s < lease.hard_s:",
            )
        ],
        f"{CLOCK_JUMPS}a_clock_that_jumps_an_hour_forward_leaves_a_live_uploader_its_set[sqlite]",
    ),
    Mutant(
        "forget-before-the-bytes-are-gone",
        "a row is kept until its bytes are deleted",
        [
            Edit(
                "storage_core/blobs/sweep/sweep.py",
                "[ForgetBlob(job_id=blob.job_id, blob_key=blob.blob_key) for blob in gone]",
                "[ForgetBlob(job_id=blob.job_id, blob_key=blob.blob_key) for blob in page]",
            )
        ],
        f"{SWEEP}an_object_that_the_ha_store_does_not_delete_stays_marked_for_the_next_sweep",
    ),
    Mutant(
        "leave-what-a-listing-finds",
        "bytes without a row are staged",
        [
            Edit(
                "storage_core/blobs/sweep/orphans.py",
                "staged = _without_duplicates(stores, orphans) if dry_run else _adopt(stores, orphans)",
                "staged = _without_duplicates(stores, orphans)",
            )
        ],
        BLOBS,
    ),
    Mutant(
        "write-a-part",
        "all of a blob is written, or the put fails",
        [
            Edit(
                "storage_core/blobs/storage/incoming_file.py",
                "while rest:  # an almost full disk writes only a part\n"
                "                rest = rest[self._file.write(rest) :]",
                "self._file.write(rest)",
            )
        ],
        FULL_DISK,
    ),
    Mutant(
        "drop-before-the-lock",
        "an incoming file is not taken for a dead writer's",
        [Edit("storage_core/file_locks.py", "if _is_at(path, file):", "if file:")],
        f"{RACES}a_sweep_does_not_drop_an_incoming_file_before_it_is_locked",
    ),
    Mutant(
        "stop-where-another-was-first",
        "a folder is deleted completely, also by concurrent deletions",
        [
            Edit(
                "storage_core/blobs/storage/local.py",
                "    while folder.is_dir():\n        with",
                "    if folder.is_dir():\n        with",
            )
        ],
        f"{RACES}two_concurrent_deletes_of_a_folder_both_succeed",
    ),
    Mutant(
        "bring-back-what-goes",
        "a get does not bring back what a sweep deletes",
        [Edit("storage_core/blobs/server/reader.py", "if self._is_deleting(job_id, blob_key):", "if False:")],
        f"{RACES}a_get_does_not_restore_a_blob_that_a_sweep_deletes",
    ),
    Mutant(
        "forget-a-job-during-a-put",
        "an ended job is remembered while a put from before its end may still be recorded",
        [
            Edit(
                "storage_core/blobs/sweep/sweep.py",
                "job.final_s is not None and row.began_s <= job.final_s for row in own",
                "False for row in own",
            )
        ],
        f"{LATE}a_put_that_ends_hours_after_its_job_is_refused_and_leaves_nothing",
    ),
    Mutant(
        "complete-a-set-during-a-put",
        "a server's own set is completed when the last put under it has ended",
        [
            Edit(
                "storage_core/blobs/server/open_upload_sets.py",
                "is_over = own is not self._latest and not own.puts",
                "is_over = own is not self._latest",
            )
        ],
        f"{LATE}an_old_set_accepts_no_new_puts_and_is_completed_after_its_last_put",
    ),
    Mutant(
        "count-a-listing-that-was-overtaken",
        "a listing during which bytes were left does not count",
        [
            Edit(
                "storage_core/blobs/storage/listing_time.py",
                "self._file.write(f",
                "self._path.write_bytes(f",
            )
        ],
        "tests/unit/blobs/test_orphans.py::test_a_listing_during_which_bytes_were_left_behind_does_not_count",
    ),
    Mutant(
        "put-before-the-store-is-claimed",
        "an HA store names its journal before it has the first blob",
        [Edit("storage_core/blobs/server/ingest.py", "self._stores.owner.claim_ha()", "")],
        f"{OWNERS}a_process_with_another_journal_deletes_no_blob_that_was_put_before_any_listing",
    ),
    Mutant(
        "delete-the-jobs-of-another-journal",
        "the end of a job deletes nothing in a store of another journal",
        [
            Edit(
                "storage_core/blobs/server/blob_server.py",
                "self.stores.owner.claim_ha()",
                "",
            )
        ],
        f"{OWNERS}the_end_of_a_job_under_another_journal_deletes_no_blob_of_the_same_job_id",
    ),
    Mutant(
        "delete-another-jobs-folder",
        "in a listed folder only the bytes of an ended job are deleted",
        [
            Edit(
                "storage_core/blobs/sweep/ended_jobs.py",
                "if job is None or job.final_s is None:\n        return []",
                "if job is None or job.final_s is None:\n        return list(listed)",
            )
        ],
        f"{JOB_IDS}a_job_end_stopped_at_any_point_deletes_nothing_of_a_new_job_with_its_id",
    ),
    Mutant(
        "delete-what-may-be-recorded",
        "bytes whose put may still be recorded after a job's end is forgotten are kept",
        [
            Edit(
                "storage_core/blobs/sweep/ended_jobs.py",
                "kept = {key for key in unsure if (job_id, key) not in known}",
                "kept = {key for key in unsure if (job_id, key) in known}",
            )
        ],
        f"{JOB_IDS}a_put_begun_after_the_end_of_its_job_is_whole_if_it_completes_after_the_end_is_forgotten",
    ),
)
