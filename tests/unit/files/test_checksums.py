"""CRC-32C by CRT and without it, against the vectors of RFC 3720."""

from __future__ import annotations

import pytest

from lockgate.storage_core.files.checksums import Checksum, crc32c, slow_crc32c

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
