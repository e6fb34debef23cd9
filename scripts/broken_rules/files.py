"""Broken rules of appendable files."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules.mutant import Edit, Mutant

TESTS: Final = "tests/unit/files/"
SECTIONS: Final = f"{TESTS}hdfs_append/"
ENTRIES: Final = "storage_core/files/namespace/file_blocks.py"

MUTANTS: Final = (
    Mutant(
        "commit-an-older-reseal",
        "of two reseals the one with the newest stamp is committed",
        [Edit(ENTRIES, "if newest != self.generation:", "if newest < self.generation:")],
        f"{SECTIONS}test_transactions.py::test_of_two_reseals_only_the_newer_is_committed",
    ),
    Mutant(
        "keep-blocks-behind-a-cut",
        "a truncate cuts off the blocks behind its target in the same entry",
        [Edit(ENTRIES, "            file = self._cut_behind(state, file, row)\n", "")],
        f"{SECTIONS}test_truncates.py::test_a_truncate_at_every_byte_of_three_blocks",
    ),
    Mutant(
        "forget-the-target-of-a-truncate",
        "a target stays until a commit, and each later reseal uses it",
        [Edit(ENTRIES, "target_bytes=target,\n        )", "target_bytes=None,\n        )")],
        f"{SECTIONS}test_transactions.py::test_of_two_reseals_only_the_newer_is_committed",
    ),
    Mutant(
        "delete-replicas-at-the-blocks-stamp",
        "the fence of a delete is newer than the block: a removal deletes at the head's stamp",
        [
            Edit(
                "storage_core/files/removal.py",
                ".delete(block.block, stamp)",
                ".delete(block.block, block.stamp)",
            )
        ],
        f"{SECTIONS}test_deletions_and_renames.py::"
        "test_the_writer_of_a_deleted_file_is_fenced_and_nothing_of_it_remains",
    ),
    Mutant(
        "keep-the-lease-of-a-deleted-file",
        "a delete ends the lease, so that the writer is fenced at the journal",
        [
            Edit(
                "storage_core/files/namespace/tree.py",
                "        if lease is not None:\n            state.delete(lease)",
                "        del lease",
            )
        ],
        f"{SECTIONS}test_deletions_and_renames.py::"
        "test_the_writer_of_a_deleted_file_is_fenced_by_its_renewal_if_no_member_is_reached",
    ),
    Mutant(
        "remove-in-safe-mode",
        "nothing is removed in safe mode",
        [
            Edit(
                "storage_core/files/namespace/removals.py",
                "if moment.is_safe_mode:",
                "if moment.is_safe_mode and not self.blocks:",
            )
        ],
        f"{TESTS}test_removal.py::test_nothing_is_removed_in_safe_mode",
    ),
    Mutant(
        "take-a-volume-that-has-a-file-to-recover",
        "a volume with an open replica is left to the recovery of its file",
        [
            Edit(
                "storage_core/files/volumes/home.py",
                "            if _has_open_replica(folder):\n                continue",
                "            if not folder:\n                continue",
            )
        ],
        "tests/unit/cli/test_files.py::test_a_volume_with_a_file_to_recover_is_left_to_the_recovery",
    ),
    Mutant(
        "report-what-changes-during-a-check",
        "a difference is read once more before it is reported",
        [
            Edit(
                "storage_core/files/replicas/replica_check.py",
                "(found := self._again(block, volume))",
                '(found := Finding(volume=volume, block=block, problem=Problem.LOST, detail=""))',
            ),
        ],
        "tests/unit/files/replicas/test_replica_check.py::test_what_changes_during_a_check_is_not_reported",
    ),
    Mutant(
        "explain-a-stamp-of-another-history",
        "a replica with a stamp above the head, or of an epoch that did not survive, is left to the operator",
        [
            Edit(
                "storage_core/files/replicas/replica_check.py",
                "stamp == Stamp() or (stamp <= self.newest and survived(self.epochs, stamp))",
                "stamp.epoch >= 0 or survived(self.epochs, stamp)",
            ),
        ],
        "tests/unit/files/replicas/test_replica_check.py::test_each_replica_that_differs_is_found_with_its_file",
    ),
    Mutant(
        "delete-a-replica-that-changed-between-the-passes",
        "a replica is deleted at the stamp that both passes saw",
        [Edit("storage_core/files/replicas/left_over.py", "and now.stamp == before.stamp", "")],
        "tests/unit/files/replicas/test_left_over.py::test_a_replica_that_changes_between_the_passes_is_kept",
    ),
    Mutant(
        "delete-what-a-block-without-members-has",
        "a replica is kept while its block has no good member",
        [Edit("storage_core/files/replicas/replica_check.py", "return bool(record.members)", "return True")],
        "tests/unit/files/replicas/test_lost_volumes.py::"
        "test_the_only_replicas_of_blocks_whose_volumes_were_all_declared_lost_are_kept_and_taken_back",
    ),
    Mutant(
        "close-an-open-file-without-its-lost-volume",
        "bytes that only a lost volume may have are given up by its name only",
        [Edit("storage_core/files/reseal.py", "missed.keys() <= given_up", "missed.keys() <= lost")],
        "tests/unit/files/replicas/test_lost_volumes.py::"
        "test_flushed_bytes_that_only_a_lost_volume_has_are_given_up_by_name_only",
    ),
    Mutant(
        "give-up-a-volume-that-another-process-owns",
        "bytes of a volume of this machine are not given up because another process owns it",
        [
            Edit(
                "storage_core/files/reseal.py",
                "set(lost) - here, set(given_up) - here",
                "set(lost), set(given_up)",
            )
        ],
        f"{TESTS}test_reseal.py::test_the_bytes_of_a_volume_that_another_process_has_are_not_given_up",
    ),
    Mutant(
        "own-a-volume-that-is-only-read",
        "a process that only reads a volume leaves it to those that change it",
        [
            Edit(
                "storage_core/files/volumes/home.py",
                "            self._views[volume] = VolumeView(folder, volume, own)\n",
                "            if own:\n                return own()\n"
                "            self._views[volume] = VolumeView(folder, volume, own)\n",
            )
        ],
        "tests/unit/files/volumes/test_home_volumes.py::"
        "test_a_process_that_only_reads_a_volume_leaves_it_to_the_one_that_recovers_its_files",
    ),
    Mutant(
        "forget-a-replica-that-is-being-cut",
        "memory forgets a replica only if a load finds it as it is",
        [
            Edit(
                "storage_core/files/volumes/local_replica.py",
                "is_sealed and self.header.length_bytes == self.length_bytes == self._durable",
                "is_sealed",
            )
        ],
        "tests/unit/files/volumes/test_block_list.py::"
        "test_a_sealed_replica_that_is_being_cut_stays_in_memory",
    ),
    Mutant(
        "let-a-fork-close-the-file-of-its-parent",
        "a close in a fork leaves the file to the parent",
        [Edit("storage_core/files/writing/writer.py", "if not self._guard.is_this:", "if False:")],
        "tests/unit/files/test_forks.py::"
        "test_a_fork_that_leaves_the_block_of_a_writer_closes_nothing_of_its_parent",
    ),
    Mutant(
        "write-a-block-of-another-writer",
        "a writer reads its lease after it has created replicas, which no takeover could fence before",
        [
            Edit(
                "storage_core/files/writing/pipeline.py",
                "        self._blocks.check_held()\n",
                "",
            )
        ],
        "tests/unit/files/test_files.py::"
        "test_a_writer_that_is_paused_before_its_block_has_replicas_acknowledges_nothing",
    ),
    Mutant(
        "trust-an-interrupted-replica",
        "a replica whose change was interrupted is loaded again from its disk",
        [
            Edit(
                "storage_core/files/volumes/local_replica.py",
                "return self._is_changing and not self._sync_failed",
                "return False",
            )
        ],
        "tests/unit/files/volumes/test_local_volume.py::test_a_fence_that_is_interrupted_after_it_is_durable_holds",
    ),
    Mutant(
        "go-on-after-an-interrupt",
        "a writer whose call was interrupted refuses each later one",
        [
            Edit(
                "storage_core/files/writing/writer.py",
                "                self._is_interrupted = True\n",
                "",
            )
        ],
        "tests/integration/test_interrupts.py::test_an_interrupted_writer_acknowledges_nothing_more",
    ),
    Mutant(
        "believe-a-page-of-a-proxy",
        "a document whose root is none of S3's for this call is no answer",
        [
            Edit(
                "storage_core/stores/s3/answers.py",
                'if found is None or found[1] not in {*roots, b"Error"}:',
                "if not body.strip():",
            )
        ],
        "tests/unit/stores/s3/test_foreign_answers.py::test_a_document_that_is_none_of_s3_is_no_answer",
    ),
    Mutant(
        "delete-the-only-bytes",
        "a replica is kept while a member of its block has no good one",
        [
            Edit(
                "storage_core/files/replicas/replica_check.py",
                "return replica if record is None or self._has_good_members(record) else None",
                "return replica",
            )
        ],
        "tests/unit/files/replicas/test_left_over.py::"
        "test_a_replica_is_kept_while_a_member_of_its_block_has_no_good_one",
    ),
    Mutant(
        "ask-for-another-block-after-a-lost-answer",
        "after an error the next call asks for the same block",
        [
            Edit(
                "storage_core/files/namespace/journal_blocks.py",
                "        if self._adding is None:\n",
                "        if self._adding is None or self._adding.op:\n",
            )
        ],
        f"{SECTIONS}test_failure_modes.py::test_the_namenode_dies_before_it_answers_a_writer",
    ),
    Mutant(
        "end-where-a-file-was-removed",
        "a reader of a file whose blocks are removed, also in part, gets an error",
        [
            Edit(
                "storage_core/files/namespace/queries.py",
                "if row is None or len(found) < row.blocks:",
                "if row is None and len(found) > 0:",
            )
        ],
        f"{SECTIONS}test_deletions_and_renames.py::"
        "test_a_reader_of_a_file_that_is_removed_in_part_gets_an_error_and_no_other_bytes",
    ),
    Mutant(
        "read-beyond-the-target-of-a-truncate",
        "a target that is journaled is the length that readers see",
        [
            Edit(
                "storage_core/files/reader.py",
                "target_bytes=record.target_bytes,",
                "target_bytes=None,",
            )
        ],
        f"{SECTIONS}test_the_reader.py::test_case_5_a_reader_that_arrives_after_a_truncate_sees_the_new_size",
    ),
)
