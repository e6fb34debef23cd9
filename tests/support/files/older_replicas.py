"""Replicas and segments as older programs wrote them, packed here by hand."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final

_NEW: Final = 2
_SEGMENT: Final = struct.Struct(">4sIQQQQBBQ16sI")


def _sum(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


def older_head(version: int, body: bytes) -> bytes:
    """Return the header of a replica with CRC-32."""
    packed = struct.pack(">4sI", b"LGRP", version) + body
    return packed + _sum(packed)


def older_frame(offset: int, data: bytes) -> bytes:
    """Return a frame with CRC-32."""
    place = struct.pack(">QI", offset, len(data))
    return place + _sum(place + data) + data


def make_older(folder: Path, block: int) -> None:
    """Rewrite a replica of version 2 as the same replica of version 1."""
    head, log = folder / f"{block:020d}.head", folder / f"{block:020d}.log"
    stored = head.read_bytes()
    assert stored[4:8] == struct.pack(">I", _NEW)
    head.write_bytes(older_head(1, stored[8:-4]))
    rest, frames = log.read_bytes(), b""
    while rest:
        offset, size, _ = struct.unpack_from(">QII", rest)
        frames += older_frame(offset, rest[16 : 16 + size])
        rest = rest[16 + size :]
    log.write_bytes(frames)


def make_older_segment(path: Path) -> None:
    """Rewrite a segment of version 2 in a bucket as the same segment of version 1."""
    stored = path.read_bytes()
    data = stored[_SEGMENT.size + 4 :]
    magic, version, *fields, _ = _SEGMENT.unpack_from(stored)
    assert version == _NEW
    header = _SEGMENT.pack(magic, 1, *fields, zlib.crc32(data))
    path.write_bytes(header + _sum(header) + data)
