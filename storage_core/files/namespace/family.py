"""The family `files`: names, files, blocks, members and volumes."""

from __future__ import annotations

from typing import Final

from lockgate.storage_core.files.namespace import file_blocks, members, rows, tree
from lockgate.storage_core.journal.entries.family import Family

FILES: Final = Family(
    name="files",
    version=1,
    rows=(rows.Inode, rows.File, rows.Block, rows.Member, rows.RegisteredVolume),
    ops=(
        tree.MakeDirectory,
        tree.Rename,
        tree.Delete,
        file_blocks.OpenFile,
        file_blocks.CloseFile,
        file_blocks.AddBlock,
        file_blocks.StampBlock,
        file_blocks.CommitBlock,
        members.MarkReplica,
        members.AddMember,
        tree.DetachNames,
        tree.RemoveBlocks,
        members.RegisterVolume,
        members.LeaveVolume,
        members.ForgetVolume,
    ),
    soft_rows=(rows.ReportedVolume, rows.DamagedReplica, rows.WrittenLength),
)
