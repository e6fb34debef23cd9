"""The mutants of `mutants.py`: a rule, the edits that break it, and the tests that must fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JOURNAL: Final = "storage_core/journal"
BLOB_REGISTRY: Final = "storage_core/blobs/registry"
MODEL: Final = "tests/model/journal/test_journal_properties.py::test_a_journal_behaves_like_its_model"
POLLING: Final = (
    "tests/model/journal/test_journal_polling.py::test_a_reader_does_not_skip_an_entry_that_commits_late"
)
OBSERVING: Final = (
    "tests/unit/journal/observers/test_client.py::test_a_read_checks_the_stamp_of_the_same_state_it_reads"
)
REPLACED: Final = "tests/unit/journal/database/test_replaced_database.py::test_"
PUT_BACK: Final = "tests/unit/journal/database/test_put_back_file.py::test_"
DURABLE: Final = "tests/unit/journal/database/test_durable_server.py::test_"
BLOBS: Final = "tests/model/blobs/test_blob_properties.py::test_blobs_are_kept_and_deleted_as_in_the_model"
FULL_DISK: Final = "tests/unit/blobs/test_outages.py::test_a_full_disk_fails_the_put_and_leaves_nothing"
LAST_ATTEMPT: Final = "tests/unit/commit/test_last_attempt.py::test_"
JOB_IDS: Final = "tests/unit/blobs/test_job_ids.py::test_"
CLOCK_JUMPS: Final = "tests/unit/blobs/test_clock_jumps.py::test_"
RACES: Final = "tests/unit/blobs/test_races.py::test_"
SWEEP: Final = "tests/unit/blobs/test_sweep.py::test_"
LATE: Final = "tests/unit/blobs/test_late_puts.py::test_"
OWNERS: Final = "tests/unit/blobs/test_store_owner.py::test_"
RIGHTS: Final = "tests/unit/operators/test_allow_lists.py::test_"
STAGED: Final = "tests/unit/workers/test_staged.py::test_"


@dataclass(frozen=True)
class Edit:
    """One replacement in one file.

    Attributes:
        path: Path below the tree.
        old: Text that occurs there exactly once.
    """

    path: str
    old: str
    new: str

    def apply(self, tree: Path) -> None:
        """Replace the old text by the new.

        Raises:
            ValueError: The old text does not occur exactly once.
        """
        file = tree / self.path
        text = file.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path}: {text.count(self.old)} occurrences, not one: {self.old!r}")
        file.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Mutant:
    """A broken rule.

    Attributes:
        breaks: The rule.
        tests: Tests of which one must fail.
    """

    name: str
    breaks: str
    edits: Sequence[Edit]
    tests: str = f"{MODEL}[sqlite]"


MUTANTS: Final = (
    Mutant(
        "auto-increment",
        "numbers are taken from the head's row, under its lock",
        [
            Edit(
                f"{JOURNAL}/write/transaction.py",
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
                f"{JOURNAL}/observers/catch_up.py",
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
                f"{JOURNAL}/entries/leases.py",
                "is_same = lease.stamp == seen.stamp and lease.renewed_s <= seen.renewed_s",
                "is_same = lease.stamp == seen.stamp",
            )
        ],
    ),
    Mutant(
        "free-any-stamp",
        "parking and freeing compare the stamp",
        [
            Edit(
                f"{JOURNAL}/entries/leases.py",
                "if lease is None or lease.stamp != stamp or lease.standing is Standing.FREE:",
                "if lease is None or lease.standing is Standing.FREE:",
            )
        ],
    ),
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
        "::test_a_stalled_driver_releases_and_records_nothing_once_another_has_taken_over[2]",
    ),
    Mutant(
        "take-with-old-stamp",
        "taking a lease issues a new stamp",
        [
            Edit(
                f"{JOURNAL}/entries/leases.py",
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
                f"{JOURNAL}/entries/leases.py",
                '"recover": frozenset({LeaseState.FREE, LeaseState.HARD})',
                '"recover": frozenset({LeaseState.FREE, LeaseState.HELD, LeaseState.HARD})',
            )
        ],
    ),
    Mutant(
        "recover-in-safe-mode",
        "nothing is recovered in safe mode",
        [Edit(f"{JOURNAL}/entries/leases.py", " and moment.is_safe_mode", " and False")],
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
    ),
    Mutant(
        "write-to-another-journal",
        "a write compares the journal's identity with the one that the process opened",
        [
            Edit(
                f"{JOURNAL}/write/transaction.py",
                "refuse_other_journal(database.name, known, identity)",
                "pass",
            )
        ],
        f"{REPLACED}a_claim_is_not_accepted_a_second_time_by_a_database_that_was_made_again[sqlite]",
    ),
    Mutant(
        "write-to-an-older-copy",
        "a write compares the head with the newest stamp that the process has seen",
        [Edit(f"{JOURNAL}/write/transaction.py", "Stamp(epoch, sequence) < known.newest", "False")],
        f"{REPLACED}a_file_that_was_put_back_is_refused_and_not_changed",
    ),
    Mutant(
        "go-on-with-a-copy",
        "a file that was put back from a copy begins a new epoch",
        [Edit(f"{JOURNAL}/write/put_back.py", "newest is not None and stamp < newest", "False")],
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
                f"{JOURNAL}/database/engines.py",
                "THEN set_config('synchronous_commit', 'on', false)",
                "THEN 'off'",
            )
        ],
        f"{DURABLE}acknowledged_entries_survive_a_crash_of_a_server_without_synchronous_commit",
    ),
    Mutant(
        "open-without-fsync",
        "a server that syncs nothing is refused",
        [Edit(f"{JOURNAL}/database/engines.py", 'fsync == "off" and not may_lose', "False")],
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
        BLOBS,
    ),
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
                "staged = _without_duplicates(holdings, orphans) if dry_run else _adopt(holdings, orphans)",
                "staged = _without_duplicates(holdings, orphans)",
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
                "storage_core/blobs/server/upload_sets.py",
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
        "ignore-dead-servers",
        "after a server died during a put, the stores are listed",
        [
            Edit(
                "storage_core/blobs/storage/server_liveness.py",
                "ListingTime(self._store).forget()  # first",
                "pass  # first",
            )
        ],
        "tests/unit/blobs/test_presence.py::"
        "test_bytes_of_a_killed_server_are_found_although_their_client_completes_its_set",
    ),
    Mutant(
        "put-before-the-store-is-claimed",
        "an HA store names its journal before it has the first blob",
        [Edit("storage_core/blobs/server/ingest.py", "self._holdings.owner.claim_ha()", "")],
        f"{OWNERS}a_process_with_another_journal_deletes_no_blob_that_was_put_before_any_listing",
    ),
    Mutant(
        "delete-the-jobs-of-another-journal",
        "the end of a job deletes nothing in a store of another journal",
        [
            Edit(
                "storage_core/blobs/server/server.py",
                "self.holdings.owner.claim_ha()",
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
    Mutant(
        "audit-other-bytes-than-uploaded",
        "an audit verdict counts only if the staged files have the bytes that were uploaded",
        [Edit("operators/audits/staged_rows.py", "if found != uploaded:", "if len(found) != len(uploaded):")],
        f"{STAGED}an_audit_refuses_a_staged_file_whose_bytes_are_not_those_that_were_uploaded",
    ),
    Mutant(
        "audit-while-a-file-changes",
        "an audit verdict counts only if no staged file changed while the suite read it",
        [Edit("operators/audits/staged_rows.py", "if state != self.seen[path]:", "if state is None:")],
        f"{STAGED}an_audit_refuses_a_staged_file_that_changed_and_changed_back",
    ),
    Mutant(
        "allow-neighbours-of-a-root",
        "a form may name what is below a root, not what begins with its name",
        [
            Edit(
                "operators/trigger_rights/allow_lists.py",
                'root.rstrip("/") + "/"',
                'root.rstrip("/")',
            )
        ],
        f"{RIGHTS}a_source_is_compared_as_spark_would_resolve_it",
    ),
    Mutant(
        "bind-a-verdict-to-what-is-there-now",
        "an audit verdict is bound to the pending sets from before the audit",
        [
            Edit(
                "storage_core/commit/decide/audit.py",
                "if chosen(folder, job_attempt) != digest:",
                "if not digest:",
            )
        ],
        "tests/unit/commit/recovery/test_recovery.py::"
        "test_an_audit_during_which_a_task_attempt_commits_gets_no_verdict",
    ),
    Mutant(
        "take-a-refusal-for-a-failure",
        "a task that a worker of another version refuses is sent to another worker",
        [Edit("workers/gather.py", 'if isinstance(meta.get("result"), REFUSALS):', "if not meta:")],
        "tests/unit/workers/test_gather.py::"
        "test_a_task_that_a_worker_of_another_version_refuses_is_sent_to_another",
    ),
    Mutant(
        "order-attempts-by-id",
        "a task commit is numbered after those before it",
        [
            Edit(
                "storage_core/commit/task/task_commit.py",
                "1 + len(settled.committed - {record.attempt_id})",
                "1",
            ),
            Edit(
                "storage_core/commit/decide/task_selection.py",
                "_Place(found.stamp, created_s, attempt)",
                "_Place(found.stamp, 0.0, attempt)",
            ),
        ],
        f"{LAST_ATTEMPT}of_attempts_in_any_order_on_any_clocks_the_last_commit_of_the_greatest_try_wins",
    ),
    Mutant(
        "order-attempts-by-the-writers-clock",
        "a retry counts on any clock",
        [
            Edit(
                "storage_core/commit/task/task_commit.py",
                "1 + len(settled.committed - {record.attempt_id})",
                "int(record.created_s)",
            )
        ],
        f"{LAST_ATTEMPT}a_retry_wins_on_a_clock_that_is_an_hour_off",
    ),
    Mutant(
        "ignore-try-numbers",
        "a retry counts before what it retries, even if that commits later",
        [Edit("storage_core/commit/task/attempt.py", "stamp=Stamp(self._try_number)", "stamp=Stamp()")],
        f"{LAST_ATTEMPT}a_retry_that_gives_its_try_number_wins_over_what_it_retries_even_if_that_commits_later",
    ),
)
