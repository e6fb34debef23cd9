"""Convert a volume of an older Lockgate, in place.

An older replica has two files: `<block>.head`, with its stamp, state and length, and `<block>.log`. Each is
written as a new log durably before its old files are deleted, so a conversion that was interrupted can be
repeated. Version 3 has CRC-32C. Version 2 is version 3 without the block in the checksums of frames, version
1 is version 2 with CRC-32, and version 0 is version 1 without a stamp.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Final

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
    disk, converted, suspect, set_aside = disk or Disk(), 0, list[BlockId](), dict[BlockId, str]()
    with translated("convert", str(folder), changes=True), ExitStack() as stack:
        if (folder / "owner.lock").exists():
            if (lock := try_lock_exclusive(folder / "owner.lock")) is None:
                raise ConflictError(f"{folder}: an older Lockgate has it open; nothing was changed; end it")
            stack.enter_context(lock)
        for head in sorted(folder.glob("*.head")):
            block = BlockId(int(head.stem))
            try:
                stamp, state, data = _read(head, block)
            except RecordVersionError:
                raise
            except (MalformedRecordError, FileNotFoundError) as error:
                set_aside[block] = str(error)
                if not dry_run:
                    _set_aside(head, disk)
                continue
            converted += 1
            suspect += [block] * (state == "suspect")
            if not dry_run:
                _write(folder, (block, stamp), state == "sealed", data, disk)
                disk.unlink(head)
                disk.sync_directory(folder)
        if not dry_run:
            for head in folder.glob("quarantine/*.head"):
                _set_aside(head, disk)
            for path in [*folder.glob("*.log"), folder / "owner.lock"]:
                disk.unlink(path)
    return Conversion(converted, tuple(suspect), set_aside)


def _read(head: Path, block: BlockId) -> tuple[Stamp, str, bytes]:
    """Return stamp, state and bytes of a replica; one that is damaged or stale is malformed."""
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
    return Stamp(*stamp), _STATES[state], bytes(data)


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


def _write(folder: Path, of: tuple[BlockId, Stamp], is_sealed: bool, data: bytes, disk: Disk) -> None:
    """Write a replica as a new log, in place of one that was not finished."""
    mode, path = folder.stat().st_mode & 0o7777, folder / "blocks" / f"{of[0]:020d}"
    disk.remove_tree(path)
    for one in (path.parent, path):
        one.mkdir(exist_ok=True)
        one.chmod(mode)
        disk.sync_directory(one.parent)
    log = Path(log_name(str(path), of[1]) + PEN)
    log.touch()
    log.chmod(mode & 0o666)
    writer = LogWriter.begin((str(path), *of), None, log, disk)
    for offset in range(0, len(data), SPAN_BYTES):
        writer.append(offset, data[offset : offset + SPAN_BYTES])
    writer.finish(len(data), ReplicaState.SEALED if is_sealed else ReplicaState.WRITING)
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
