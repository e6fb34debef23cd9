"""The `aws-chunked` encoding, in which boto3 sends a body whose checksum it knows only at the end."""

from __future__ import annotations

from collections.abc import Mapping

UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
"""What stands in place of the body's hash."""


def unchunked(body: bytes) -> tuple[bytes, Mapping[str, str]]:
    """Return the bytes themselves, and the headers that trail them.

    Raises:
        ValueError: The encoding is broken.
    """
    chunks, rest = [], body
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        chunks.append(rest[:length])
        if rest[length : length + 2] != b"\r\n":
            raise ValueError("a chunk is not as long as it says")
        rest = rest[length + 2 :]
    lines = (line.partition(":") for line in rest.decode().split("\r\n") if line)
    return b"".join(chunks), {name.lower(): value.strip() for name, _, value in lines}
