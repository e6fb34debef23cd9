"""CRC-32C by CRT and without it, against the vectors of RFC 3720; a machine without CRT beside others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockgate.storage_core.files.checksums import Checksum, crc32c, slow_crc32c
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import open_store

B, S1 = BlockId(7), Stamp(1, 1)
READ_10 = bytes.fromhex(
    "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
)
VECTORS = {  # RFC 3720, appendix B.4
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    READ_10: 0xD9963A56,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.mark.parametrize("checksum", [crc32c, slow_crc32c])
def test_the_vectors_of_the_standard_hold(checksum: Checksum) -> None:
    for data, expected in VECTORS.items():
        assert checksum(data, 0) == expected
        for at in range(len(data) + 1):
            assert checksum(memoryview(data)[at:], checksum(data[:at], 0)) == expected


WITHOUT_CRT = """
import sys
from pathlib import Path
sys.modules["awscrt.checksums"] = None
from lockgate.storage_core.files.checksums import HAS_CRC32C
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import open_store
assert not HAS_CRC32C
old, new, s1, s2 = BlockId(7), BlockId(8), Stamp(1, 1), Stamp(1, 2)
root = Path(sys.argv[1])
with DirectoryVolume(root / "local") as local:
    for volume in (local, S3Volume(open_store(str(root / "bucket"), load_settings()))):
        assert volume.read(old, s1, 0, 9) == b"abc"
        volume.fence(old, s2, s1)
        volume.finish(old, s2, 3, ReplicaState.WRITING)
        volume.append(old, s2, 3, b"def")
        volume.finish(old, s2, 6, ReplicaState.SEALED)
        volume.create(new, s1)
        volume.append(new, s1, 0, b"new")
        volume.finish(new, s1, 3, ReplicaState.SEALED)
"""


def test_a_machine_without_crt_reads_crc_32c_and_writes_crc_32(tmp_path: Path) -> None:
    with DirectoryVolume(tmp_path / "local") as local:
        for volume in (local, S3Volume(open_store(str(tmp_path / "bucket"), load_settings()))):
            volume.create(B, S1)
            volume.append(B, S1, 0, b"abc")
            volume.flush(B, S1)
            volume.finish(B, S1, 3, ReplicaState.SEALED)

    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_CRT, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr
    logs = (tmp_path / "local").glob("blocks/*/*.log")
    assert {int(path.parent.name): path.read_bytes()[5] for path in logs} == {7: 1, 8: 1}
    with DirectoryVolume(tmp_path / "local") as local:
        for volume in (local, S3Volume(open_store(str(tmp_path / "bucket"), load_settings()))):
            assert volume.read(B, Stamp(1, 2), 0, 9) == b"abcdef"
            assert volume.read(BlockId(8), S1, 0, 9) == b"new"
