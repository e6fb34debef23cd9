"""Replicas and segments as older programs wrote them, packed here by hand."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final

from lockgate.storage_core.files.checksums import slow_crc32c

_NEW: Final = 3
_NEW_SEGMENT: Final = 2
_SEGMENT: Final = struct.Struct(">4sIQQQQBBQ16sI")


def _sum(data: bytes, version: int = 1) -> bytes:
    return struct.pack(">I", slow_crc32c(data) if version > 1 else zlib.crc32(data))


def older_head(version: int, body: bytes) -> bytes:
    """Return the header of a replica; version 2 has CRC-32C."""
    packed = struct.pack(">4sI", b"LGRP", version) + body
    return packed + _sum(packed, version)


def older_frame(offset: int, data: bytes, version: int = 1) -> bytes:
    """Return a frame without its block in its checksum."""
    place = struct.pack(">QI", offset, len(data))
    return place + _sum(place + data, version) + data


def make_older(folder: Path, block: int, version: int = 1) -> None:
    """Rewrite a replica of version 3 as the same replica of an older version."""
    head, log = folder / f"{block:020d}.head", folder / f"{block:020d}.log"
    stored = head.read_bytes()
    assert stored[4:8] == struct.pack(">I", _NEW)
    head.write_bytes(older_head(version, stored[8:-4]))
    rest, frames = log.read_bytes(), b""
    while rest:
        offset, size, _ = struct.unpack_from(">QII", rest)
        frames += older_frame(offset, rest[16 : 16 + size], version)
        rest = rest[16 + size :]
    log.write_bytes(frames)


def make_older_segment(path: Path) -> None:
    """Rewrite a segment of version 2 in a bucket as the same segment of version 1."""
    stored = path.read_bytes()
    data = stored[_SEGMENT.size + 4 :]
    magic, version, *fields, _ = _SEGMENT.unpack_from(stored)
    assert version == _NEW_SEGMENT
    header = _SEGMENT.pack(magic, 1, *fields, zlib.crc32(data))
    path.write_bytes(header + _sum(header) + data)
