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
        [
            Edit(
                "storage_core/files/namespace/file_blocks.py",
                "if newest != commit.generation:",
                "if newest < commit.generation:",
            )
        ],
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
        [
            Edit(
                "storage_core/files/namespace/file_blocks.py",
                "replace(row, target_bytes=target))",
                "replace(row, target_bytes=None))",
            )
        ],
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
                "storage_core/files/namespace/tree.py",
                "if moment.is_safe_mode:",
                "if moment.is_safe_mode and not self.blocks:",
            )
        ],
        f"{TESTS}test_removal.py::test_nothing_is_removed_in_safe_mode",
    ),
    Mutant(
        "report-what-changes-during-a-check",
        "a difference is read once more before it is reported",
        [
            Edit(
                "storage_core/files/replicas/replica_check.py",
                "replicas = {block: stat_replica(there, block) for block in blocks}",
                "replicas: dict[BlockId, Replica | None] = dict.fromkeys(blocks)",
            ),
            Edit(
                "storage_core/files/replicas/replica_check.py",
                "found = judge(record, volume, stat_replica(there, block), read_history(self.journal))",
                "pass",
            ),
        ],
        f"{TESTS}replicas/test_replica_check.py::test_what_changes_during_a_check_is_not_reported",
    ),
    Mutant(
        "explain-a-stamp-of-another-history",
        "a replica with a stamp above the head, or of an epoch that did not survive, is left to the operator",
        [
            Edit(
                "storage_core/files/replicas/comparison.py",
                "stamp == Stamp() or (stamp <= self.newest and survived(self.epochs, stamp))",
                "stamp.epoch >= 0 or survived(self.epochs, stamp)",
            )
        ],
        f"{TESTS}replicas/test_repair.py::test_a_replica_without_a_stamp_or_of_another_history_is_left_to_the_operator",
    ),
    Mutant(
        "delete-a-replica-that-changed-between-the-passes",
        "a replica is deleted if both passes saw the same bytes",
        [
            Edit(
                "storage_core/files/replicas/repair.py",
                " and (now.stamp, now.token) == (before.stamp, before.token)",
                "",
            )
        ],
        f"{TESTS}replicas/test_repair.py::test_a_replica_that_changes_between_the_passes_is_kept",
    ),
    Mutant(
        "let-a-fork-close-the-file-of-its-parent",
        "a close in a fork leaves the file to the parent",
        [Edit("storage_core/files/writing/writer.py", "if not self._guard.is_this:", "if False:")],
        f"{TESTS}test_forks.py::test_a_fork_that_leaves_the_block_of_a_writer_closes_nothing_of_its_parent",
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
                "storage_core/files/replicas/repair.py",
                "return replica if record is None or _has_good_members(volumes, record, history) else None",
                "return replica",
            )
        ],
        f"{TESTS}replicas/test_repair.py::test_a_replica_is_kept_while_a_member_of_its_block_has_no_good_one",
    ),
    Mutant(
        "ask-for-another-block-after-a-lost-answer",
        "after an error the next call asks for the same block",
        [
            Edit(
                "storage_core/files/namespace/journal_blocks.py",
                "if self._asked is None or self._asked.op != op:",
                "if self._asked is None or op:",
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
                "storage_core/files/length.py",
                "        return record.target_bytes  # it is decided",
                "        return record.length_bytes  # it is decided",
            )
        ],
        f"{SECTIONS}test_the_reader.py::test_case_5_a_reader_that_arrives_after_a_truncate_sees_the_new_size",
    ),
    Mutant(
        "acknowledge-before-the-first-commit",
        "the first flush of a block is committed before it returns: a takeover may have found no replica",
        [
            Edit(
                "storage_core/files/writing/pipeline.py",
                "if end and not self.record.length_bytes:",
                "if end < 0:",
            )
        ],
        f"{TESTS}test_files.py::"
        "test_a_writer_that_is_paused_before_its_block_has_replicas_acknowledges_nothing",
    ),
    Mutant(
        "acknowledge-without-a-look",
        "a flush looks for its log by its name after the sync, and answers only if it is there",
        [
            Edit(
                "storage_core/files/volumes/directory/log_writer.py",
                "        there = self._at_name(os.O_RDONLY)\n",
                "        there = os.dup(file)\n",
            ),
        ],
        "tests/unit/files/volumes/test_directory_volume.py::test_a_flush_behind_a_fence_is_refused_though_its_log_is_still_there",
    ),
    Mutant(
        "choose-the-shortest-replica",
        "the longest undamaged replica is the block: one that was cut without a trace shrinks nothing",
        [
            Edit(
                "storage_core/files/length.py",
                "source = max(whole, key=lambda volume: whole[volume])",
                "source = min(whole, key=lambda volume: whole[volume])",
            )
        ],
        f"{TESTS}test_reseal.py::test_a_replica_with_too_few_bytes_shrinks_nothing_and_gets_them_from_another_one",
    ),
    Mutant(
        "choose-a-damaged-replica",
        "a damaged replica does not tell the length",
        [
            Edit(
                "storage_core/files/length.py",
                "        if one.length_bytes >= floor and not one.damage",
                "        if one.length_bytes >= floor",
            )
        ],
        f"{TESTS}test_reseal.py::test_the_length_that_a_reseal_chooses",
    ),
    Mutant(
        "forget-what-members-know",
        "no commit is shorter than a member knows to be acknowledged",
        [
            Edit(
                "storage_core/files/length.py",
                "max([floor_bytes, *(one.acknowledged_bytes for one in replicas.values())])",
                "floor_bytes",
            )
        ],
        f"{TESTS}test_reseal.py::test_the_length_that_a_reseal_chooses",
    ),
    Mutant(
        "forget-what-renewals-have-stored",
        "no commit is shorter than a renewal has stored",
        [
            Edit(
                "storage_core/files/reseal.py",
                "floor = max(floor, blocks.acknowledged(block, stamped.stamp))",
                "floor = max(floor, 0)",
            )
        ],
        f"{TESTS}test_reseal.py::test_what_is_known_to_be_acknowledged_is_not_given_up",
    ),
    Mutant(
        "close-without-replicas-that-are-gone",
        "replicas that are all gone are a loss if the block was flushed",
        [Edit("storage_core/files/reseal.py", "if self._has_none and not floor:", "if self._has_none:")],
        f"{TESTS}test_reseal.py::test_damage_on_all_members_is_told_until_an_operator_accepts_the_loss",
    ),
    Mutant(
        "read-what-one-member-has",
        "readers see bytes that all members have",
        [Edit("storage_core/files/length.py", "max(floor, min(lengths))", "max(floor, *lengths)")],
        f"{SECTIONS}test_the_reader.py::"
        "test_case_2_a_new_reader_of_a_file_that_is_written_sees_the_same_bytes_on_each_member",
    ),
    Mutant(
        "read-before-the-fence",
        "a fence takes the pens of older stamps before it reads their bytes",
        [
            Edit(
                "storage_core/files/volumes/directory/replica_files.py",
                "        found.refuse_older(block, stamp)\n        for name",
                "        found.refuse_older(block, stamp)\n"
                "        early = Log.load(folder, block, found.newest or stamp, is_verified=True)\n"
                "        for name",
            ),
            Edit(
                "storage_core/files/volumes/directory/replica_files.py",
                "        source = Log.load(folder, block, newest, is_verified=True)\n",
                "        source = early\n",
            ),
        ],
        "tests/contract/test_volume_races.py::test_a_flush_at_each_step_of_a_fence_is_in_it_or_refused",
    ),
    Mutant(
        "read-within-the-tick-of-the-fence",
        "on NFS a fence changes the folder until its time is another one, and only then reads",
        [
            Edit(
                "storage_core/files/volumes/directory/replica_files.py",
                "        self.disk.outdate(Path(folder))\n",
                "",
            )
        ],
        f"{TESTS}volumes/test_nfs.py::"
        "test_a_writer_that_has_looked_within_the_tick_of_a_fence_is_refused_or_in_it",
    ),
    Mutant(
        "delete-a-copy-in-the-place-of-what-was-judged",
        "a deletion names the files of the folder that it has opened",
        [
            Edit(
                "storage_core/files/volumes/directory/replica_files.py",
                "self.disk.discard(name, folder)",
                'self.disk.discard(f"{path}/{name}")',
            )
        ],
        "tests/contract/test_volume_races.py::test_a_copy_at_each_step_of_a_deletion_stays",
    ),
    Mutant(
        "delete-damaged-bytes",
        "the log of a damaged replica stays beside that of its fence until its length was chosen",
        [
            Edit(
                "storage_core/files/volumes/directory/replica_files.py",
                '            if damage != "":',
                "            if damage is None:",
            )
        ],
        f"{TESTS}volumes/test_directory_volume.py::"
        "test_the_log_of_a_damaged_replica_stays_until_its_length_was_chosen",
    ),
    Mutant(
        "replace-before-the-copy-is-whole",
        "a damaged replica stays until the copy in its place is whole",
        [
            Edit(
                "storage_core/files/volumes/directory/directory_volume.py",
                "            self.check_presence()\n            path, log",
                "            self.delete(block, stamp)\n            path, log",
            )
        ],
        f"{TESTS}volumes/test_directory_volume.py::"
        "test_a_stored_replica_takes_the_place_of_a_damaged_or_older_one_at_once",
    ),
    Mutant(
        "copy-a-long-block-to-append",
        "a last block of 8 MiB or more is not opened to appends again",
        [
            Edit(
                "storage_core/files/files.py",
                "reopened = min(self._block_bytes, REOPENED_BYTES)",
                "reopened = max(self._block_bytes, REOPENED_BYTES)",
            )
        ],
        f"{TESTS}test_files.py::test_an_append_opens_a_short_last_block_and_leaves_a_long_one_as_it_is",
    ),
)
