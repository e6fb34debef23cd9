"""The family `files`: names, files, blocks, members and volumes."""

from __future__ import annotations

from typing import Final

from lockgate.storage_core.files.namespace.file_blocks import AddBlock, CommitBlock, StampBlock
from lockgate.storage_core.files.namespace.member_marks import AddMember, DropMembers, MarkReplica
from lockgate.storage_core.files.namespace.open_files import CloseFile, OpenFile
from lockgate.storage_core.files.namespace.registered_volumes import ForgetVolume, LeaveVolume, RegisterVolume
from lockgate.storage_core.files.namespace.removals import DetachNames, RemoveBlocks, RemoveInode
from lockgate.storage_core.files.namespace.rows import (
    Block,
    DamagedReplica,
    File,
    Inode,
    Member,
    RegisteredVolume,
    ReportedVolume,
    WrittenLength,
)
from lockgate.storage_core.files.namespace.tree import Delete, MakeDirectory, Rename
from lockgate.storage_core.journal.entries.family import Family

FILES: Final = Family(
    name="files",
    version=1,
    rows=(Inode, File, Block, Member, RegisteredVolume),
    ops=(
        MakeDirectory,
        Rename,
        Delete,
        OpenFile,
        CloseFile,
        AddBlock,
        StampBlock,
        CommitBlock,
        MarkReplica,
        AddMember,
        DropMembers,
        DetachNames,
        RemoveBlocks,
        RemoveInode,
        RegisterVolume,
        LeaveVolume,
        ForgetVolume,
    ),
    soft_rows=(ReportedVolume, DamagedReplica, WrittenLength),
)
