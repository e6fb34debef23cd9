"""The family `files`: names, files, blocks, members and volumes."""

from __future__ import annotations

from typing import Final

from lockgate.storage_core.files.namespace.file_blocks import (
    AddBlock,
    CloseFile,
    CommitBlock,
    OpenFile,
    StampBlock,
)
from lockgate.storage_core.files.namespace.members import (
    AddMember,
    ForgetVolume,
    LeaveVolume,
    MarkReplica,
    RegisterVolume,
)
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
from lockgate.storage_core.files.namespace.tree import (
    Delete,
    DetachNames,
    MakeDirectory,
    RemoveBlocks,
    RemoveInode,
    Rename,
)
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
        DetachNames,
        RemoveBlocks,
        RemoveInode,
        RegisterVolume,
        LeaveVolume,
        ForgetVolume,
    ),
    soft_rows=(ReportedVolume, DamagedReplica, WrittenLength),
)
