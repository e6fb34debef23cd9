"""Convert a volume of an older Lockgate, in place.

An older replica has two files: `<block>.head`, with its stamp, state and length, and `<block>.log`. Each is
written as a new log durably before its old files are deleted, so a conversion that was interrupted can be
repeated. Version 3 has CRC-32C. Version 2 is version 3 without the block in the checksums of frames, version
1 is version 2 with CRC-32, and version 0 is version 1 without a stamp.
"""

from __future__ import annotations

import struct
import zlib
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from lockgate.storage_core.errors import ConflictError, MalformedRecordError, RecordVersionError
from lockgate.storage_core.file_locks import try_lock_exclusive
from lockgate.storage_core.files.checksums import Checksum, crc32c
from lockgate.storage_core.files.volumes.directory.log import PEN, SPAN_BYTES, log_name
from lockgate.storage_core.files.volumes.directory.log_writer import LogWriter
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.os_errors import translated

_MAGIC: Final = b"LGRP"
_START: Final = struct.Struct(">4sI")
_V0: Final = struct.Struct(">QBQ")
_V1: Final = struct.Struct(">QQQBQ")
_FRAME: Final = struct.Struct(">QII")
_STATES: Final = ("writing", "sealed", "suspect", "stale")
_NEWEST: Final = 3


class Conversion(msgspec.Struct, frozen=True):
    """What a conversion has done, or would do.

    Attributes:
        converted: Number of replicas that are in the new layout now.
        suspect: Those of them whose older volume did not trust their end.
        set_aside: Replicas that are damaged, or missed a reseal, and why; their files are in `quarantine`.
    """

    converted: int
    suspect: tuple[BlockId, ...]
    set_aside: dict[BlockId, str]


class _Older(NamedTuple):
    stamp: Stamp
    state: str
    data: bytes


def convert(folder: Path, *, dry_run: bool = False, disk: Disk | None = None) -> Conversion:
    """Convert a volume; one that has no older replica stays as it is.

    A replica that was being written stays open: the next reseal of its block decides about its length.

    Args:
        folder: Directory of the volume.
        dry_run: Whether nothing is changed.
        disk: Calls of the disk.

    Raises:
        ConflictError: An older Lockgate has the volume open.
        RecordVersionError: A newer Lockgate wrote a replica.
    """
    disk, suspect, set_aside, converted = disk or Disk(), list[BlockId](), dict[BlockId, str](), 0
    with translated("convert", str(folder), changes=True):
        lock = try_lock_exclusive(folder / "owner.lock") if (folder / "owner.lock").exists() else None
        if lock is None and (folder / "owner.lock").exists():
            raise ConflictError(
                f"{folder} is open in an older Lockgate; nothing was changed; end that process"
            )
        try:
            for head in sorted(folder.glob("*.head")):
                block = BlockId(int(head.stem))
                try:
                    older = _read(head, block)
                except RecordVersionError:
                    raise
                except (MalformedRecordError, FileNotFoundError) as error:
                    set_aside[block] = str(error)
                    if not dry_run:
                        _set_aside(head, disk)
                    continue
                converted += 1
                suspect += [block] * (older.state == "suspect")
                if not dry_run:
                    _write(folder, block, older, disk)
                    disk.unlink(head)
                    disk.sync_directory(folder)
            if not dry_run:
                for head in folder.glob("quarantine/*.head"):
                    _set_aside(head, disk)
                for path in [*folder.glob("*.log"), folder / "owner.lock"]:
                    disk.unlink(path)
        finally:
            if lock is not None:
                lock.close()
    return Conversion(converted, tuple(suspect), set_aside)


def _read(head: Path, block: BlockId) -> _Older:
    """Read a replica.

    Raises:
        MalformedRecordError: It is damaged, or missed a reseal.
        FileNotFoundError: Its log is missing.
    """
    packed, log = head.read_bytes(), memoryview(head.with_suffix(".log").read_bytes())
    magic, version = _START.unpack_from(packed.ljust(_START.size, b"\0"))
    if magic == _MAGIC and version > _NEWEST:
        raise RecordVersionError(f"{head}: version {version} of the replica is newer than this program")
    layout, checksum = _V1 if version else _V0, crc32c if version > 1 else zlib.crc32
    end = _START.size + layout.size
    if magic != _MAGIC or packed[end:] != struct.pack(">I", checksum(packed[:end], 0)):
        raise MalformedRecordError(f"{head}: the header is damaged")
    of, *stamp, state, length = layout.unpack(packed[_START.size : end])
    if of != block or _STATES[state] == "stale":
        raise MalformedRecordError(f"{head}: the replica is that of block {of}, or missed a reseal")
    data = _bytes(log, checksum, struct.pack(">Q", block) if version == _NEWEST else b"")
    if _STATES[state] == "suspect":
        del data[length:]
    if _STATES[state] == "sealed" and len(data) != length:
        raise MalformedRecordError(f"{head}: only {len(data)} of {length} bytes are intact")
    return _Older(Stamp(*stamp), _STATES[state], bytes(data))


def _bytes(log: memoryview, checksum: Checksum, place: bytes) -> bytearray:
    """Return the bytes of the intact frames of a log."""
    data, position = bytearray(), 0
    while len(log) - position >= _FRAME.size:
        offset, size, expected = _FRAME.unpack_from(log, position)
        frame = log[position + _FRAME.size :][:size]
        before = checksum(place + struct.pack(">QI", offset, size), 0)
        if len(frame) < size or offset > len(data) or checksum(frame, before) != expected:
            break
        data[offset:] = frame
        position += _FRAME.size + size
    return data


def _write(folder: Path, block: BlockId, older: _Older, disk: Disk) -> None:
    """Write a replica as a new log, in place of one that was not finished."""
    mode, path = folder.stat().st_mode & 0o7777, folder / "blocks" / f"{block:020d}"
    disk.remove_tree(path)
    for one in (path.parent, path):
        one.mkdir(exist_ok=True)
        one.chmod(mode)
        disk.sync_directory(one.parent)
    log = Path(log_name(str(path), older.stamp) + PEN)
    log.touch()
    log.chmod(mode & 0o666)
    writer = LogWriter.begin((str(path), block, older.stamp), None, log, disk)
    for offset in range(0, len(older.data), SPAN_BYTES):
        writer.append(offset, older.data[offset : offset + SPAN_BYTES])
    state = ReplicaState.SEALED if older.state == "sealed" else ReplicaState.WRITING
    writer.finish(len(older.data), state)
    writer.release()
    disk.sync_directory(path)


def _set_aside(head: Path, disk: Disk) -> None:
    """Move the files of a replica below `quarantine`, the header last."""
    root = head.parent if head.parent.name == "quarantine" else head.parent / "quarantine"
    block = head.name.partition(".")[0]
    target = next(one for one in (root / block / f"{n}" for n in count()) if not (one / head.name).exists())
    target.mkdir(parents=True, exist_ok=True)
    for path in (head.with_suffix(".log"), head):
        if path.exists():
            disk.rename(path, target / path.name)
            disk.sync_directory(target)
            disk.sync_directory(head.parent)
