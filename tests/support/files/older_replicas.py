"""Replicas and segments as older programs wrote them, packed here by hand."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lockgate.storage_core.files.checksums import slow_crc32c

_NEW_SEGMENT: Final = 2
_SEGMENT: Final = struct.Struct(">4sIQQQQBBQ16sI")


def _sum(data: bytes, version: int = 1) -> bytes:
    return struct.pack(">I", slow_crc32c(data) if version > 1 else zlib.crc32(data))


def older_replica(
    folder: Path,
    block: int,
    pieces: Sequence[tuple[int, bytes]],
    *,
    state: str = "sealed",
    version: int = 3,
    length: int = 0,
) -> None:
    """Write a replica in two files, at stamp 1.1, with one frame a piece; version 0 has no stamp."""
    number = ("writing", "sealed", "suspect", "stale").index(state)
    body = struct.pack(">QQQBQ", block, 1, 1, number, length)
    head = struct.pack(">4sI", b"LGRP", version) + (body if version else body[:8] + body[24:])
    (folder / f"{block:020d}.head").write_bytes(head + _sum(head, version))
    log = b""
    for offset, data in pieces:
        frame = struct.pack(">QI", offset, len(data))
        within = struct.pack(">Q", block) if version > 2 else b""
        log += frame + _sum(within + frame + data, version) + data
    (folder / f"{block:020d}.log").write_bytes(log)


def make_older_segment(path: Path) -> None:
    """Rewrite a segment of version 2 in a bucket as the same segment of version 1."""
    stored = path.read_bytes()
    data = stored[_SEGMENT.size + 4 :]
    magic, version, *fields, _ = _SEGMENT.unpack_from(stored)
    assert version == _NEW_SEGMENT
    header = _SEGMENT.pack(magic, 1, *fields, zlib.crc32(data))
    path.write_bytes(header + _sum(header) + data)
