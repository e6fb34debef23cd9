"""Segments of an older version in a bucket, with CRC-32, beside new ones with CRC-32C."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import pytest

from lockgate.storage_core.errors import MalformedRecordError
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.probe import with_capabilities
from tests.support.files.older_replicas import make_older_segment

B = BlockId(7)
S1, S2 = Stamp(1, 1), Stamp(1, 2)
LARGE = 16


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store that copies parts of 16 bytes and more."""
    opened = open_store(str(tmp_path / "bucket"), load_settings())
    return with_capabilities(opened, msgspec.structs.replace(opened.capabilities, min_part_bytes=LARGE))


def _segments(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "bucket").rglob("segments/*/*"))


def test_a_bucket_has_segments_of_both_versions_and_composes_them(tmp_path: Path, store: Store) -> None:
    volume = S3Volume(store)
    volume.create(B, S1)
    volume.append(B, S1, 0, b"a" * LARGE)
    volume.flush(B, S1)
    volume.append(B, S1, LARGE, b"b")
    volume.flush(B, S1)
    for path in _segments(tmp_path):
        make_older_segment(path)

    volume = S3Volume(store)
    assert volume.read(B, S1, 0, 99) == b"a" * LARGE + b"b"
    volume.append(B, S1, LARGE + 1, b"c" * LARGE)
    volume.flush(B, S1)
    whole = b"a" * LARGE + b"b" + b"c" * LARGE
    assert S3Volume(store).read(B, S1, 0, 99) == whole
    volume.finish(B, S1, len(whole), ReplicaState.SEALED)
    (composed,) = (tmp_path / "bucket").rglob("composed/*/*")
    for one in (volume, S3Volume(store)):
        assert one.read(B, S1, 0, 99) == whole
    data = composed.read_bytes()
    for at in (0, LARGE, LARGE + 1):
        composed.write_bytes(data[:at] + b"?" + data[at + 1 :])
        with pytest.raises(MalformedRecordError, match="checksum"):
            S3Volume(store).read(B, S1, 0, 99)


def test_an_older_composition_is_read_and_taken_into_a_new_one(tmp_path: Path, store: Store) -> None:
    volume = S3Volume(store)
    volume.create(B, S1)
    volume.append(B, S1, 0, b"a" * LARGE)
    volume.flush(B, S1)
    volume.append(B, S1, LARGE, b"bc")
    volume.finish(B, S1, LARGE + 2, ReplicaState.SEALED)
    (composed,) = (tmp_path / "bucket").rglob("composed/*/*")
    sums = [(LARGE, zlib.crc32(b"a" * LARGE)), (2, zlib.crc32(b"bc"))]
    composed.write_bytes(b"a" * LARGE + b"bc" + msgspec.msgpack.encode(sums))
    for path in _segments(tmp_path):
        make_older_segment(path)

    volume = S3Volume(store)
    assert volume.read(B, S1, 0, 99) == b"a" * LARGE + b"bc"
    volume.fence(B, S2, S1)
    volume.finish(B, S2, LARGE + 2, ReplicaState.WRITING)
    volume.append(B, S2, LARGE + 2, b"d")
    volume.finish(B, S2, LARGE + 3, ReplicaState.SEALED)

    assert S3Volume(store).read(B, S2, 0, 99) == b"a" * LARGE + b"bcd"
    (composed,) = (tmp_path / "bucket").rglob("composed/*/*")
    data = composed.read_bytes()
    composed.write_bytes(b"?" + data[1:])
    with pytest.raises(MalformedRecordError, match="checksum"):
        S3Volume(store).read(B, S2, 0, 99)
